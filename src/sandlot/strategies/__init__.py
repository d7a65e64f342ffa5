"""What a pool should keep warm: pure functions from what is there and what will be asked for to a plan.

A strategy is any callable `(View) -> Plan`. It sees frozen values, holds no clock and starts nothing. The pool asks it
anew after every change, a few times a second at most, and carries out what it says as far as its limits allow, waiting
requests always first.
"""

from sandlot.strategies.base import Holding, Lease, Plan, Strategy, View
from sandlot.strategies.fixed import fixed
from sandlot.strategies.look_ahead import look_ahead
from sandlot.strategies.none import none

__all__ = ["Holding", "Lease", "Plan", "Strategy", "View", "fixed", "look_ahead", "none"]
