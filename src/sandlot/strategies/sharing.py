"""How many sandboxes of one spec are enough, where others need the room. Pure.

A request can be served by a sandbox of its own, or by one that serves a request before it. The first takes room for as long
as a creation lasts, the second makes it wait for a lease and a reset. Where leases are short against creations, and room is
what many specs wait for, one sandbox that serves four requests in turn leaves room to make three others' meanwhile.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from itertools import islice
from typing import Final

from sandlot.spec import Spec
from sandlot.strategies.base import Holding, View

PATIENCE: Final = 2.0  # creation times, beyond a turn: whoever has waited for so long waits for no other's sandbox any more


def enough(view: View, concurrency: int, margin: float) -> Mapping[Spec, int]:
    """Sandboxes of each spec whose turn comes soon beyond which its requests wait for one another's.

    So many that the last of those that run at once waits no longer for its turn than a creation takes; and never less than an
    even share of the room, so that none is idle where few specs are left. Specs whose requests are to have one each are not
    named; nor is any before it is known how long leases are, or while resets leave nothing that could be shared.
    """
    if view.lease_s is None:
        return {}
    soon = _soon(view, view.lease_s, concurrency, margin)
    share = view.slots // len(soon) if soon else 0
    found: dict[Spec, int] = {}
    for spec, uses in soon.items():
        holding = view.holdings.get(spec, Holding())
        turn_s = _turn_s(view, holding)
        if turn_s is not None and holding.create_s and holding.waits_s <= turn_s + PATIENCE * holding.create_s:
            needed = max(1, math.ceil(min(concurrency, uses) * turn_s / holding.create_s), share)
            if needed < concurrency:
                found[spec] = needed
    return found


def kept(view: View, concurrency: int) -> Mapping[Spec, int]:
    """Parked ones that the next requests need: to wait until a lease ends is quicker than to make another of them."""
    coming = Counter(view.expected[: protected(view, concurrency)])
    return {spec: n for spec, n in coming.items() if _is_quick(view, view.holdings.get(spec, Holding()))}


def protected(view: View, concurrency: int) -> int:
    """So many of the requests to come may hold a sandbox at once: what these need is never given up for any other of them."""
    return min(concurrency, view.slots)


def _turn_s(view: View, holding: Holding) -> float | None:
    """Seconds from one use of a sandbox to the next; None: not known, or there is no next."""
    return None if view.lease_s is None or holding.reset_s is None else view.lease_s + holding.reset_s


def _is_quick(view: View, holding: Holding) -> bool:
    turn_s = _turn_s(view, holding)
    return turn_s is not None and turn_s <= (holding.create_s or 0.0)


def _soon(view: View, lease_s: float, concurrency: int, margin: float) -> Counter[Spec]:
    """How often each spec is used by requests that wait, and by those to come for which a sandbox has to be begun now."""
    create_s = max((view.holdings[spec].create_s or 0.0 for spec in set(view.expected) if spec in view.holdings), default=0.0)
    turns = 1.0 + margin * create_s / lease_s if lease_s > 0 else math.inf
    count = len(view.expected) if turns * concurrency >= len(view.expected) else math.ceil(turns * concurrency)
    soon = Counter(islice(view.expected, count))
    for spec, holding in view.holdings.items():
        if holding.waiting:
            soon[spec] += holding.waiting
    return soon
