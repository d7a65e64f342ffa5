"""The pool's front desk: who gets which sandbox, what is created, what makes way. Pure: it starts nothing and has no clock.

The order of service
    1. A parked sandbox goes to the longest waiting request for its spec.
    2. A request that nothing parked or coming will serve has one created, first come, first served, if there is room;
       unless the strategy says that enough of its spec exist: then it waits, out of the line, until one of those is free.
    3. If there is none, parked sandboxes that nobody waits for make way for it, the longest parked first. Those that the
       strategy keeps do only where nothing is in use or on its way that ever will.
    4. Only when no request is in want is anything created for stock, as the strategy says.

A sandbox that comes back may serve a later request of its own spec before an earlier one of another spec that needs its
room. That is quick, and unfair if it goes on: after `PATIENCE` such cases in a row the room goes to the earliest.

Of the L requests that wait for a spec and the C sandboxes that are coming for it, the first C are served by those; the
last L - C are in want, and each of them has its place in one line over all specs. So every operation is O(1), and
`decide` is O(1) for each thing it decides.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final, Literal

from sandlot.errors import BadRequest
from sandlot.pool.room import PoolLimits
from sandlot.spec import Spec
from sandlot.strategies import Plan

PATIENCE: Final = 16

Origin = Literal["request", "stock", "reset"]
"""Where a sandbox that is coming comes from: created for a request, created for stock, or reset after a lease."""


@dataclass(slots=True, eq=False)
class Shelf:
    """All of one spec."""

    idle: OrderedDict[str, None] = field(default_factory=OrderedDict)
    """Parked sandboxes, the longest parked first."""
    waiting: OrderedDict[int, None] = field(default_factory=OrderedDict)
    """Requests, the longest waiting first."""
    coming: int = 0
    """Being created or reset."""

    @property
    def want(self) -> int:
        """Requests that nothing on the way will serve: the last ones of `waiting`."""
        return max(0, len(self.waiting) - self.coming)

    @property
    def surplus(self) -> int:
        """Coming, and promised to nobody."""
        return max(0, self.coming - len(self.waiting))


@dataclass(frozen=True, slots=True)
class Decisions:
    """What is to be done now. The desk has booked it already."""

    give: tuple[tuple[int, str], ...] = ()
    """Request and the sandbox that it gets."""
    create: tuple[tuple[Spec, Origin], ...] = ()
    discard: tuple[str, ...] = ()


class Desk:
    """The books of one pool: every sandbox is in exactly one place."""

    def __init__(self, limits: PoolLimits) -> None:
        self.limits: Final = limits
        self._shelves: dict[Spec, Shelf] = {}
        self._line: OrderedDict[int, Spec] = OrderedDict()
        """Requests in want (and some no longer, which are passed over when their turn comes), first come first."""
        self._patient: OrderedDict[int, Spec] = OrderedDict()
        """Requests in want that have no place in that line: enough of their spec exists, and they wait for one of those."""
        self._parked: OrderedDict[str, Spec] = OrderedDict()
        self._leased: dict[str, Spec] = {}
        self._in_use: Counter[Spec] = Counter()
        self._leaving: dict[str, Spec] = {}
        self._serve: OrderedDict[Spec, None] = OrderedDict()
        """Specs for which something changed since the last decision."""
        self._plan = Plan()
        self._held = self._held_memory = self._leaving_memory = self._stocking = self._passed_over = 0

    # --- requests -----------------------------------------------------------------------------------------------------
    def ask(self, ticket: int, spec: Spec) -> None:
        """Queue a request.

        Raises:
            BadRequest: this spec alone is beyond the pool's limits: it would wait for ever.
        """
        need, most = self.limits.memory_of(spec), self.limits.memory
        if most is not None and need > most:
            raise BadRequest(f"a sandbox with {need} bytes of memory does not fit into a pool of {most} bytes")
        shelf = self._shelf(spec)
        shelf.waiting[ticket] = None
        if shelf.want:
            self._line[ticket] = spec
            self._plan = _without_one(self._plan, spec)
        self._serve[spec] = None

    def ask_again(self, ticket: int, spec: Spec) -> None:
        """What this request got was dead: it waits again, before all others."""
        shelf = self._shelf(spec)
        shelf.waiting[ticket] = None
        shelf.waiting.move_to_end(ticket, last=False)
        self._bring_into_line(spec, shelf)
        self._serve[spec] = None

    def leave(self, ticket: int, spec: Spec) -> None:
        """A waiting request was cancelled."""
        shelf = self._shelves[spec]
        del shelf.waiting[ticket]
        self._unline(ticket)
        self._tidy(spec, shelf)

    # --- sandboxes ----------------------------------------------------------------------------------------------------
    def arrived(self, name: str, spec: Spec, origin: Origin) -> None:
        """One that was coming is here, and parked until `decide` gives it away."""
        shelf = self._shelf(spec)
        shelf.coming -= 1
        self._stocking -= origin == "stock"
        shelf.idle[name] = None
        self._parked[name] = spec
        self._serve[spec] = None

    def failed(self, spec: Spec, origin: Origin) -> int | None:
        """One that was being created will not come. The request that fails with it, or None: nobody counted on it."""
        shelf = self._shelf(spec)
        counted_on = len(shelf.waiting) >= shelf.coming
        shelf.coming -= 1
        self._stocking -= origin == "stock"
        self._let_go(spec)
        ticket = None
        if counted_on:
            ticket, _ = shelf.waiting.popitem(last=False)
            self._unline(ticket)
        self._tidy(spec, shelf)
        return ticket

    def returned(self, name: str, leases: int, *, wanted: bool = True) -> bool:
        """A lease has ended. True: reset it, it is coming back. False: it is to be deleted.

        `wanted`: the strategy would keep it if nobody waited for it.
        """
        spec = self._end_lease(name)
        if not self._worth_a_reset(spec, leases, wanted=wanted):
            self._leave(name, spec)
            return False
        self._shelf(spec).coming += 1
        return True

    def handed_back(self, name: str) -> None:
        """Whoever it was given to never touched it: it is parked again."""
        spec = self._end_lease(name)
        self._shelf(spec).idle[name] = None
        self._parked[name] = spec
        self._serve[spec] = None

    def lost(self, name: str) -> None:
        """A leased one was found dead: it is to be deleted."""
        self._leave(name, self._end_lease(name))

    def spoiled(self, name: str, spec: Spec, origin: Origin) -> None:
        """A reset left it dirty, or it died before it was here: it is to be deleted, and who counted on it is in want."""
        shelf = self._shelf(spec)
        shelf.coming -= 1
        self._stocking -= origin == "stock"
        self._leave(name, spec)
        self._bring_into_line(spec, shelf)
        self._tidy(spec, shelf)

    def died(self, name: str) -> bool:
        """A sandbox ended by itself. False when it was not parked: whoever has it will notice and say so."""
        spec = self._parked.pop(name, None)
        if spec is None:
            return False
        shelf = self._shelf(spec)
        del shelf.idle[name]
        self._leave(name, spec)
        self._tidy(spec, shelf)
        return True

    def departed(self, name: str) -> None:
        """One that was to be deleted is gone: there is room again."""
        spec = self._leaving.pop(name)
        self._leaving_memory -= self.limits.memory_of(spec)
        self._let_go(spec)

    # --- decisions ----------------------------------------------------------------------------------------------------
    def follow(self, plan: Plan) -> None:
        """From now on this is what the strategy wants; it replaces what is left of the former plan."""
        self._plan = plan

    def decide(self) -> Decisions:
        """What to do now, booked as done."""
        give = tuple(self._gifts())
        self._end_patience()
        discard: list[str] = []
        create = list(self._creates(discard))
        discard += self._evictions()
        create += self._warmings()
        return Decisions(give, tuple(create), tuple(discard))

    def _gifts(self) -> Iterator[tuple[int, str]]:
        while self._serve:
            spec, _ = self._serve.popitem(last=False)
            shelf = self._shelves.get(spec)
            while shelf is not None and shelf.idle and shelf.waiting:
                ticket, _ = shelf.waiting.popitem(last=False)
                self._unline(ticket)
                name, _ = shelf.idle.popitem()  # the one parked last: its pages are the warmest
                del self._parked[name]
                self._leased[name] = spec
                self._in_use[spec] += 1
                yield ticket, name

    def _creates(self, discard: list[str]) -> Iterator[tuple[Spec, Origin]]:
        while self._line:
            ticket, spec = next(iter(self._line.items()))
            shelf = self._shelves.get(spec)
            if shelf is None or not shelf.want:
                del self._line[ticket]
            elif self._has_enough(spec):
                self._patient[ticket] = self._line.pop(ticket)
            elif self._has_room(spec):
                del self._line[ticket]
                self._passed_over = 0
                self._hold(spec, shelf)
                yield spec, "request"
            else:
                discard += self._make_way()
                return

    def _make_way(self) -> Iterator[str]:
        """Parked ones go, the longest parked first; those to keep only where nothing else would ever make room."""
        kept: Counter[Spec] = Counter()
        for name, spec in list(self._parked.items()):
            if not self._pressed():
                return
            kept[spec] += 1
            if kept[spec] > self._plan.keep.get(spec, 0):
                yield self._evict(name)
        while self._pressed() and self._parked and not self._leased and not self._leaving and not self._coming:
            yield self._evict(next(iter(self._parked)))

    def _end_patience(self) -> None:
        """Requests for which there is not enough any more are in the line again, in their old places."""
        if any(not self._has_enough(spec) for spec in set(self._patient.values())):
            back = {ticket: spec for ticket, spec in self._patient.items() if not self._has_enough(spec)}
            for ticket in back:
                del self._patient[ticket]
            self._line = OrderedDict(sorted({**self._line, **back}.items()))

    def _evictions(self) -> Iterator[str]:
        for spec in self._plan.evict:
            shelf = self._shelves.get(spec)
            if shelf is not None and shelf.idle:
                yield self._evict(next(iter(shelf.idle)))
        self._plan = replace(self._plan, evict=())

    def _warmings(self) -> Iterator[tuple[Spec, Origin]]:
        warm = list(self._plan.warm)
        while warm and not self._line and self._stocking < self.limits.warming and self._has_room(warm[0]):
            spec = warm.pop(0)
            self._stocking += 1
            self._hold(spec, self._shelf(spec))
            yield spec, "stock"
        self._plan = replace(self._plan, warm=tuple(warm))

    # --- what there is ------------------------------------------------------------------------------------------------
    @property
    def shelves(self) -> dict[Spec, Shelf]:
        return self._shelves

    @property
    def patient(self) -> bool:
        """Requests wait for what is in use or on its way, though there may be room for one more."""
        return bool(self._patient)

    @property
    def waiting(self) -> int:
        return sum(len(shelf.waiting) for shelf in self._shelves.values())

    @property
    def counts(self) -> dict[str, int]:
        """Sandboxes by place; they add up to `held`."""
        places = {"idle": len(self._parked), "leased": len(self._leased), "coming": self._coming}
        return {**places, "leaving": len(self._leaving)}

    @property
    def held(self) -> int:
        return self._held

    @property
    def slots_free(self) -> int:
        return self.limits.sandboxes - self._held

    @property
    def memory_free(self) -> int | None:
        return None if self.limits.memory is None else self.limits.memory - self._held_memory

    # --- books --------------------------------------------------------------------------------------------------------
    @property
    def _coming(self) -> int:
        return sum(shelf.coming for shelf in self._shelves.values())

    def _has_enough(self, spec: Spec) -> bool:
        enough = self._plan.enough.get(spec)
        if enough is None:
            return False
        shelf = self._shelves.get(spec)
        return self._in_use[spec] + (shelf.coming + len(shelf.idle) if shelf is not None else 0) >= max(1, enough)

    def _unline(self, ticket: int) -> None:
        self._line.pop(ticket, None)
        self._patient.pop(ticket, None)

    def _end_lease(self, name: str) -> Spec:
        spec = self._leased.pop(name)
        self._in_use[spec] -= 1
        if not self._in_use[spec]:
            del self._in_use[spec]
        return spec

    def _shelf(self, spec: Spec) -> Shelf:
        shelf = self._shelves.get(spec)
        if shelf is None:
            shelf = self._shelves[spec] = Shelf()
        return shelf

    def _tidy(self, spec: Spec, shelf: Shelf) -> None:
        if not (shelf.idle or shelf.waiting or shelf.coming):
            self._shelves.pop(spec, None)

    def _bring_into_line(self, spec: Spec, shelf: Shelf) -> None:
        """The first request in want of this spec gets the first place. O(requests of the spec): only after a mishap."""
        if shelf.want:
            ticket = next(islice(shelf.waiting, len(shelf.waiting) - shelf.want, None))
            self._patient.pop(ticket, None)
            self._line[ticket] = spec
            self._line.move_to_end(ticket, last=False)

    def _worth_a_reset(self, spec: Spec, leases: int, *, wanted: bool) -> bool:
        if self.limits.leases_each is not None and leases >= self.limits.leases_each:
            return False
        shelf = self._shelves.get(spec)
        if shelf is None or not shelf.waiting:
            return wanted and not self._pressed()
        if not self._pressed():
            return True
        if next(iter(shelf.waiting)) < next(iter(self._line)):
            return True
        self._passed_over += 1
        return self._passed_over <= PATIENCE

    def _pressed(self) -> bool:
        """The line needs more room than there is and than is being made."""
        if not self._line:
            return False
        if len(self._line) > self.slots_free + len(self._leaving):
            return True
        need, free = self.limits.memory_of(next(iter(self._line.values()))), self.memory_free
        return free is not None and need > free + self._leaving_memory

    def _has_room(self, spec: Spec) -> bool:
        free = self.memory_free
        return self.slots_free > 0 and (free is None or self.limits.memory_of(spec) <= free)

    def _hold(self, spec: Spec, shelf: Shelf) -> None:
        shelf.coming += 1
        self._held += 1
        self._held_memory += self.limits.memory_of(spec)

    def _let_go(self, spec: Spec) -> None:
        self._held -= 1
        self._held_memory -= self.limits.memory_of(spec)

    def _evict(self, name: str) -> str:
        spec = self._parked.pop(name)
        shelf = self._shelves[spec]
        del shelf.idle[name]
        self._leave(name, spec)
        self._tidy(spec, shelf)
        return name

    def _leave(self, name: str, spec: Spec) -> None:
        self._leaving[name] = spec
        self._leaving_memory += self.limits.memory_of(spec)


def _without_one(plan: Plan, spec: Spec) -> Plan:
    """The plan, when the request has come that one of its creations was for."""
    if spec not in plan.warm:
        return plan
    place = plan.warm.index(spec)
    return replace(plan, warm=plan.warm[:place] + plan.warm[place + 1 :])
