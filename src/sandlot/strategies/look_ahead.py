"""Have the right sandbox ready when its turn comes, and no sooner: a rehearsal of the requests to come.

The sequence of requests is known (a run's tasks), and so are how many run at a time, how long a lease lasts and how long
each spec takes to create. So the near future can be rehearsed: leases end in the order they began, each end lets the next
request start, and what came back serves a request of its own spec. A request that finds nothing parked is a miss; it is
created when (its start - its creation time x `margin`) has come.

Requests of one spec share sandboxes where leases are short against creations and others need the room (`sharing`).

When there is no room, the parked sandbox that will be needed latest makes way (Belady 1966), but only for one that is
needed sooner.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from sandlot.errors import BadRequest
from sandlot.spec import Spec
from sandlot.strategies.base import Holding, Plan, Strategy, View
from sandlot.strategies.sharing import enough, kept, protected

UNKNOWN_CREATE_S: Final = 5.0  # until one was measured: an image may have to be unpacked first
UNKNOWN_LEASE_S: Final = 60.0  # until one was measured
NEVER: Final = 2**62  # position of a use that does not come


def look_ahead(*, concurrency: int, margin: float = 2.0) -> Strategy:
    """Warm what the next requests need, in time.

    Args:
        concurrency: leases that run at a time.
        margin: how many creation times before its turn a sandbox is begun. Above 1, since turns come early too.

    Raises:
        BadRequest: no concurrency, or a margin below 1.
    """
    if concurrency < 1 or margin < 1:
        raise BadRequest(f"look-ahead needs concurrency >= 1 and margin >= 1, got {concurrency} and {margin}")

    def plan(view: View) -> Plan:
        if view.remaining is None:
            return Plan()
        limits = enough(view, concurrency, margin)
        misses = _rehearse(view, concurrency, margin, limits)
        planned = _within_room(view, misses, protected(view, concurrency))
        return replace(planned, enough=limits, keep=kept(view, concurrency))

    return plan


@dataclass(slots=True)
class _Stage:
    """The rehearsal's own count of what is in use and what is parked."""

    now_s: float
    lease_s: float
    ends: list[tuple[float, int, Spec | None]] = field(default_factory=list)
    parked: Counter[Spec] = field(default_factory=Counter)
    exist: Counter[Spec] = field(default_factory=Counter)
    """Sandboxes, in use or not."""
    _order: int = 0

    def lease(self, spec: Spec | None, until_s: float) -> None:
        """None: in turn with others, of a sandbox whose end of use is counted already."""
        self._order += 1
        heapq.heappush(self.ends, (until_s, self._order, spec))

    def end_one(self) -> None:
        """The next lease ends, and its sandbox is parked."""
        end_s, _, spec = heapq.heappop(self.ends)
        self.now_s = max(self.now_s, end_s)
        if spec is not None:
            self.parked[spec] += 1


def _set(view: View, limits: Mapping[Spec, int]) -> _Stage:
    """How things stand: leases go on, and requests that wait have theirs when what they wait for has been created."""
    stage = _Stage(view.now_s, view.lease_s if view.lease_s is not None else UNKNOWN_LEASE_S)
    for lease in view.leases:
        stage.lease(lease.spec, max(view.now_s, lease.since_s + stage.lease_s))
        stage.exist[lease.spec] += 1
    for spec, holding in view.holdings.items():
        stage.parked[spec] = holding.idle + holding.coming
        stage.exist[spec] += holding.idle + holding.coming + holding.promised
        for number in range(holding.waiting):
            own = number < holding.promised or stage.exist[spec] < limits.get(spec, NEVER)
            stage.exist[spec] += own and number >= holding.promised
            stage.lease(spec if own else None, view.now_s + _create_s(view, spec) + stage.lease_s)
    return stage


def _rehearse(view: View, concurrency: int, margin: float, limits: Mapping[Spec, int]) -> list[tuple[int, Spec]]:
    """Position and spec of each coming request that will find nothing parked and whose creation is due, in order."""
    stage = _set(view, limits)
    due: list[tuple[int, Spec]] = []
    horizon_s = view.now_s + margin * max((_create_s(view, spec) for spec in set(view.expected)), default=0.0)
    for position, spec in enumerate(view.expected):
        while len(stage.ends) >= concurrency:
            stage.end_one()
        if stage.now_s > horizon_s:
            break  # nothing that starts so late can be due now
        own = stage.parked[spec] > 0 or stage.exist[spec] < limits.get(spec, NEVER)
        if stage.parked[spec] > 0:
            stage.parked[spec] -= 1
        elif own:
            stage.exist[spec] += 1
            if stage.now_s - margin * _create_s(view, spec) <= view.now_s:
                due.append((position, spec))
        stage.lease(spec if own else None, stage.now_s + stage.lease_s)
    return due


def _within_room(view: View, due: list[tuple[int, Spec]], protected: int) -> Plan:
    """As many of the due creations as there is room for, making room where something is needed later or never.

    What the first `protected` requests need stays: another of it would have to be made at once.
    """
    spare = _Spare(view)
    evict: list[Spec] = spare.useless()
    warm: list[Spec] = []
    slots, memory = view.slots_free + len(evict), view.memory_free
    if memory is not None:
        memory += sum(spec.memory_bytes or 0 for spec in evict)
    for position, spec in due:
        need = spec.memory_bytes or 0
        while slots < 1 or (memory is not None and memory < need):
            victim = spare.latest_after(max(position, protected - 1))
            if victim is None:
                return Plan(tuple(evict), tuple(warm))
            evict.append(victim)
            slots += 1
            memory = None if memory is None else memory + (victim.memory_bytes or 0)
        warm.append(spec)
        slots -= 1
        memory = None if memory is None else memory - need
    return Plan(tuple(evict), tuple(warm))


class _Spare:
    """Parked sandboxes by when each is needed: the k-th parked one of a spec serves the k-th coming request for it."""

    def __init__(self, view: View) -> None:
        self._view = view
        uses: defaultdict[Spec, deque[int]] = defaultdict(deque)
        for position, spec in enumerate(view.expected):
            uses[spec].append(position)
        self._heap: list[tuple[int, int, Spec]] = []
        for order, (spec, holding) in enumerate(view.holdings.items()):
            if view.remaining is not None and view.remaining.get(spec, 0) == 0:
                continue
            for k in range(holding.idle):
                position = uses[spec][k] if k < len(uses[spec]) else NEVER
                heapq.heappush(self._heap, (-position, order, spec))

    def useless(self) -> list[Spec]:
        """Those that no request to come asks for at all."""
        remaining = self._view.remaining or {}
        return [s for s, holding in self._view.holdings.items() if not remaining.get(s, 0) for _ in range(holding.idle)]

    def latest_after(self, position: int) -> Spec | None:
        """Take the one that is needed latest, if that is after this position."""
        if not self._heap or -self._heap[0][0] <= position:
            return None
        return heapq.heappop(self._heap)[2]


def _create_s(view: View, spec: Spec) -> float:
    known = view.holdings.get(spec, Holding()).create_s
    return UNKNOWN_CREATE_S if known is None else known
