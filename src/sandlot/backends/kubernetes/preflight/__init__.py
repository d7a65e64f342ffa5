"""What stands between a cluster and a burst of sandboxes: `facts` holds what was seen, `gathering` asks the API server for it,
`judging` turns it into findings with their cost and remedy, `choosing` picks the ways that `auto` stands for, `probing` tries
real sandboxes, and `remembering` keeps what was tried for the next start.

`judging` and `choosing` are pure. Whatever may not be asked is unknown, and is said to be.
"""

from sandlot.backends.kubernetes.preflight.choosing import Choice, choose_connect, choose_delivery
from sandlot.backends.kubernetes.preflight.facts import Facts, Tried
from sandlot.backends.kubernetes.preflight.gathering import gather
from sandlot.backends.kubernetes.preflight.judging import Finding, judge

__all__ = ["Choice", "Facts", "Finding", "Tried", "choose_connect", "choose_delivery", "gather", "judge"]
