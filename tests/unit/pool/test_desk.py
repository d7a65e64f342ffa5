"""The pool's books: who gets what, in which order, within which room. Pure, so any history can be tried."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sandlot.errors import BadRequest
from sandlot.pool.desk import PATIENCE, Decisions, Desk, Origin
from sandlot.pool.room import PoolLimits
from sandlot.spec import Spec
from sandlot.strategies import Plan

A, B, C = (Spec(image=f"dir:/{letter}", memory="100MiB") for letter in "abc")
MIB = 2**20


def desk_with(*parked: tuple[str, Spec], **limits: int) -> Desk:
    """A desk on which these sandboxes are parked, in this order."""
    desk = Desk(PoolLimits(**{"sandboxes": len(parked), "warming": 100} | limits))
    for name, spec in parked:
        desk.follow(Plan(warm=(spec,)))
        assert desk.decide().create == ((spec, "stock"),)
        desk.arrived(name, spec, "stock")
        desk.decide()
    return desk


def test_a_request_with_nothing_parked_has_one_created() -> None:
    """And gets it when it arrives."""
    desk = Desk(PoolLimits(sandboxes=1))
    desk.ask(1, A)
    assert desk.decide() == Decisions(create=((A, "request"),))
    desk.arrived("a", A, "request")
    assert desk.decide() == Decisions(give=((1, "a"),))


def test_a_parked_one_is_given_at_once() -> None:
    """The one parked last: its pages are the warmest."""
    desk = desk_with(("a1", A), ("a2", A))
    desk.ask(1, A)
    assert desk.decide() == Decisions(give=((1, "a2"),))


def test_requests_of_one_spec_are_served_in_order() -> None:
    """First come, first served, whichever create ends first."""
    desk = Desk(PoolLimits(sandboxes=3))
    for ticket in (1, 2, 3):
        desk.ask(ticket, A)
    desk.decide()
    for name in ("x", "y", "z"):
        desk.arrived(name, A, "request")
    assert desk.decide().give == ((1, "z"), (2, "y"), (3, "x"))


def test_what_nobody_waits_for_makes_way() -> None:
    """The longest parked goes first, one for each request, and the create waits for the room."""
    desk = desk_with(("b1", B), ("b2", B))
    desk.ask(1, A)
    assert desk.decide() == Decisions(discard=("b1",))
    assert desk.decide() == Decisions()
    desk.departed("b1")
    assert desk.decide() == Decisions(create=((A, "request"),))


def test_a_create_that_fails_fails_one_request() -> None:
    """The one that has waited longest; the others keep what is on its way for them."""
    desk = Desk(PoolLimits(sandboxes=2))
    desk.ask(1, A)
    desk.ask(2, A)
    desk.decide()
    assert desk.failed(A, "request") == 1
    desk.arrived("a", A, "request")
    assert desk.decide().give == ((2, "a"),)


def test_a_failed_create_for_stock_fails_nobody() -> None:
    """Nobody had counted on it."""
    desk = Desk(PoolLimits())
    desk.follow(Plan(warm=(A,)))
    desk.decide()
    assert desk.failed(A, "stock") is None
    assert desk.held == 0


def test_a_cancelled_request_leaves_what_it_caused_to_others() -> None:
    """The create goes on and serves the next request of its spec."""
    desk = Desk(PoolLimits(sandboxes=1))
    desk.ask(1, A)
    desk.decide()
    desk.leave(1, A)
    desk.ask(2, A)
    assert desk.decide() == Decisions()
    desk.arrived("a", A, "request")
    assert desk.decide().give == ((2, "a"),)


def test_a_returned_one_is_reset_for_the_next_of_its_spec() -> None:
    """It is coming again, so no new one is created."""
    desk = desk_with(("a", A))
    desk.ask(1, A)
    desk.decide()
    desk.ask(2, A)
    assert desk.decide() == Decisions()
    assert desk.returned("a", leases=1)
    desk.arrived("a", A, "reset")
    assert desk.decide().give == ((2, "a"),)


def test_a_returned_one_that_the_strategy_would_not_keep_goes_unless_someone_waits() -> None:
    """Resetting it first would be work for nothing; for a request it is the quickest."""
    desk = desk_with(("a1", A), ("a2", A), sandboxes=3)
    desk.ask(1, A)
    desk.ask(2, A)
    desk.decide()
    assert not desk.returned("a1", leases=1, wanted=False)
    desk.ask(3, A)
    desk.decide()
    assert desk.returned("a2", leases=1, wanted=False)


def test_a_returned_one_goes_when_its_room_is_needed() -> None:
    """Resetting what must make way would be work for nothing."""
    desk = desk_with(("a", A))
    desk.ask(1, A)
    desk.decide()
    desk.ask(2, B)
    desk.decide()
    assert not desk.returned("a", leases=1)
    assert desk.decide() == Decisions()
    desk.departed("a")
    assert desk.decide().create == ((B, "request"),)


def test_a_sandbox_serves_so_many_leases_and_no_more() -> None:
    """`leases_each` holds though nothing presses."""
    desk = desk_with(("a", A), leases_each=2)
    desk.ask(1, A)
    desk.decide()
    assert not desk.returned("a", leases=2)


def test_a_dirty_one_is_replaced_for_whom_counted_on_it() -> None:
    """The request is in want again, before all others."""
    desk = desk_with(("a", A))
    desk.ask(1, A)
    desk.decide()
    desk.ask(2, A)
    desk.ask(3, B)
    desk.decide()
    assert desk.returned("a", leases=1)
    desk.spoiled("a", A, "reset")
    assert desk.decide() == Decisions()
    desk.departed("a")
    assert desk.decide().create == ((A, "request"),)


def test_nobody_starves_behind_returns() -> None:
    """A request of another spec gets the room after a bounded number of others were served before it."""
    desk = desk_with(("a", A))
    desk.ask(0, A)
    desk.decide()
    desk.ask(1, B)
    served = 0
    for ticket in range(2, 100):
        desk.ask(ticket, A)
        desk.decide()
        if not desk.returned("a", leases=ticket):
            break
        desk.arrived("a", A, "reset")
        assert desk.decide().give == ((ticket, "a"),)
        served += 1
    assert served == PATIENCE
    desk.departed("a")
    assert desk.decide().create == ((B, "request"),)


def test_a_dead_parked_one_is_never_given() -> None:
    """Once it is known to be dead it is on its way out, whatever is asked next."""
    desk = desk_with(("a1", A), ("a2", A))
    assert desk.died("a2")
    desk.ask(1, A)
    assert desk.decide().give == ((1, "a1"),)
    assert not desk.died("a1")


def test_a_request_that_got_a_dead_one_goes_first() -> None:
    """It waits again, but not behind those that came later."""
    desk = Desk(PoolLimits(sandboxes=1))
    desk.ask(1, A)
    desk.decide()
    desk.arrived("a", A, "request")
    desk.decide()
    desk.ask(2, A)
    desk.lost("a")
    desk.ask_again(1, A)
    desk.decide()
    desk.departed("a")
    assert desk.decide().create == ((A, "request"),)
    desk.arrived("b", A, "request")
    assert desk.decide().give == ((1, "b"),)


def test_stock_waits_for_requests() -> None:
    """Nothing is created for stock while a request is in want; then so many at a time."""
    desk = Desk(PoolLimits(sandboxes=10, warming=2))
    desk.follow(Plan(warm=(B, B, B)))
    desk.ask(1, A)
    assert desk.decide().create == ((A, "request"), (B, "stock"), (B, "stock"))
    assert desk.decide() == Decisions()
    desk.arrived("b", B, "stock")
    assert desk.decide().create == ((B, "stock"),)


def test_a_request_replaces_the_stock_that_was_planned_for_it() -> None:
    """Or one sandbox too many would be created between two plans."""
    desk = Desk(PoolLimits(sandboxes=10, warming=1))
    desk.follow(Plan(warm=(A, B, B)))
    assert desk.decide().create == ((A, "stock"),)
    desk.ask(1, B)
    assert desk.decide().create == ((B, "request"),)
    desk.arrived("a", A, "stock")
    assert desk.decide().create == ((B, "stock"),)
    desk.arrived("b", B, "stock")
    assert desk.decide() == Decisions(give=((1, "b"),))


def test_memory_is_room_too() -> None:
    """A request that does not fit waits until enough has gone, and later ones do not overtake it."""
    big = Spec(image="dir:/big", memory="250MiB")
    desk = desk_with(("a", A), ("b", B), sandboxes=10, memory=300 * MIB)
    desk.ask(1, big)
    desk.ask(2, C)
    assert desk.decide() == Decisions(discard=("a", "b"))
    desk.departed("a")
    assert desk.decide() == Decisions()
    desk.departed("b")
    assert desk.decide().create == ((big, "request"),)


def test_what_can_never_fit_is_refused() -> None:
    """At once, and not after waiting for ever."""
    with pytest.raises(BadRequest, match="does not fit"):
        Desk(PoolLimits(memory=50 * MIB)).ask(1, A)


@pytest.mark.parametrize("bad", [{"sandboxes": 0}, {"warming": -1}, {"leases_each": 0}])
def test_limits_that_cannot_work_are_refused(bad: dict[str, int]) -> None:
    """When they are made."""
    with pytest.raises(BadRequest):
        PoolLimits(**bad)


def test_requests_of_which_enough_exist_wait_for_those() -> None:
    """Outside of the line: there is room for others meanwhile, and for stock."""
    desk = Desk(PoolLimits(sandboxes=3))
    desk.follow(Plan(warm=(C,), enough={A: 1}))
    for ticket, spec in ((1, A), (2, A), (3, B)):
        desk.ask(ticket, spec)
    assert desk.decide().create == ((A, "request"), (B, "request"), (C, "stock"))
    assert desk.patient
    desk.arrived("a", A, "request")
    assert desk.decide().give == ((1, "a"),)
    assert desk.returned("a", 1)
    desk.arrived("a", A, "reset")
    assert desk.decide().give == ((2, "a"),)
    assert not desk.patient


def test_patience_ends_when_what_was_waited_for_is_lost() -> None:
    """The request is in the line again, in its old place."""
    desk = Desk(PoolLimits(sandboxes=1))
    desk.follow(Plan(enough={A: 1}))
    for ticket, spec in ((1, A), (2, A), (3, B)):
        desk.ask(ticket, spec)
    desk.decide()
    desk.arrived("a", A, "request")
    assert desk.decide().give == ((1, "a"),)
    desk.lost("a")
    desk.departed("a")
    assert desk.decide().create == ((A, "request"),)


def test_patience_ends_when_the_strategy_says_so() -> None:
    """And when the request is cancelled nothing of it remains."""
    desk = Desk(PoolLimits(sandboxes=2))
    desk.follow(Plan(enough={A: 1}))
    for ticket in (1, 2, 3):
        desk.ask(ticket, A)
    assert desk.decide().create == ((A, "request"),)
    desk.leave(3, A)
    desk.follow(Plan())
    assert desk.decide().create == ((A, "request"),)
    assert not desk.patient


def test_what_is_kept_makes_way_only_where_nothing_else_will() -> None:
    """The request waits for the lease that is going on; when that is over and still there is no room, it has it."""
    desk = desk_with(("b", B), ("c", C), sandboxes=3)
    desk.ask(1, C)
    assert desk.decide().give == ((1, "c"),)
    desk.follow(Plan(warm=(C,), keep={B: 1, C: 1}))
    assert desk.decide().create == ((C, "stock"),)
    desk.arrived("c2", C, "stock")
    desk.ask(2, A)
    assert desk.decide() == Decisions()
    assert not desk.returned("c", 1)
    assert desk.decide() == Decisions()
    desk.departed("c")
    assert desk.decide() == Decisions(create=((A, "request"),))
    desk.arrived("a", A, "request")
    assert desk.decide().give == ((2, "a"),)
    desk.lost("a")
    desk.departed("a")
    for ticket in (3, 4):
        desk.ask(ticket, A)
    assert desk.decide() == Decisions(create=((A, "request"),))


class AnyHistory(RuleBasedStateMachine):
    """Any order of requests, returns, failures, deaths and cancellations leaves the books right and nobody forgotten."""

    @initialize(slots=st.integers(1, 5), memory=st.none() | st.integers(100, 500), each=st.none() | st.integers(1, 3))
    def begin(self, slots: int, memory: int | None, each: int | None) -> None:
        bytes_ = None if memory is None else memory * MIB
        self.desk = Desk(PoolLimits(sandboxes=slots, memory=bytes_, leases_each=each))
        self.tickets = self.names = 0
        self.waiting: dict[int, Spec] = {}
        self.coming: list[tuple[Spec, Origin, str]] = []
        self.leased: dict[str, int] = {}
        self.leases: Counter[str] = Counter()
        self.spec_of: dict[str, Spec] = {}
        self.leaving: list[str] = []

    def act(self) -> None:
        decisions = self.desk.decide()
        for ticket, name in decisions.give:
            assert self.waiting.pop(ticket) == self.spec_of[name]
            self.leased[name] = ticket
            self.leases[name] += 1
        for spec, origin in decisions.create:
            self.names += 1
            name = f"s{self.names}"
            self.spec_of[name] = spec
            self.coming.append((spec, origin, name))
        self.leaving += decisions.discard

    @rule(spec=st.sampled_from([A, B, C]))
    def ask(self, spec: Spec) -> None:
        self.tickets += 1
        self.waiting[self.tickets] = spec
        self.desk.ask(self.tickets, spec)
        self.act()

    @precondition(lambda self: self.waiting)
    @rule(pick=st.integers(0, 9))
    def cancel(self, pick: int) -> None:
        ticket = list(self.waiting)[pick % len(self.waiting)]
        self.desk.leave(ticket, self.waiting.pop(ticket))
        self.act()

    @precondition(lambda self: self.coming)
    @rule(pick=st.integers(0, 9), well=st.integers(0, 3), well_otherwise=st.booleans())
    def come(self, pick: int, well: int, well_otherwise: bool = True) -> None:
        spec, origin, name = self.coming.pop(pick % len(self.coming))
        if well:
            self.desk.arrived(name, spec, origin)
        elif origin == "reset" or well_otherwise:
            self.desk.spoiled(name, spec, origin)
            self.leaving.append(name)
        else:
            ticket = self.desk.failed(spec, origin)
            if ticket is not None:
                assert self.waiting.pop(ticket) == spec
        self.act()

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 9), wanted=st.booleans())
    def give_back(self, pick: int, wanted: bool = True) -> None:
        name = list(self.leased)[pick % len(self.leased)]
        del self.leased[name]
        if self.desk.returned(name, self.leases[name], wanted=wanted):
            self.coming.append((self.spec_of[name], "reset", name))
        else:
            self.leaving.append(name)
        self.act()

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 9))
    def hand_out_a_dead_one(self, pick: int) -> None:
        name = list(self.leased)[pick % len(self.leased)]
        ticket = self.leased.pop(name)
        self.desk.lost(name)
        self.leaving.append(name)
        self.waiting[ticket] = self.spec_of[name]
        self.desk.ask_again(ticket, self.spec_of[name])
        self.act()

    @precondition(lambda self: self.leased)
    @rule(pick=st.integers(0, 9))
    def hand_back_untouched(self, pick: int) -> None:
        name = list(self.leased)[pick % len(self.leased)]
        del self.leased[name]
        self.desk.handed_back(name)
        self.act()

    @rule(pick=st.integers(1, 60))
    def die(self, pick: int) -> None:
        if self.desk.died(f"s{pick}"):
            self.leaving.append(f"s{pick}")
        self.act()

    @precondition(lambda self: self.leaving)
    @rule(pick=st.integers(0, 9))
    def depart(self, pick: int) -> None:
        self.desk.departed(self.leaving.pop(pick % len(self.leaving)))
        self.act()

    @rule(
        warm=st.lists(st.sampled_from([A, B, C]), max_size=3),
        evict=st.lists(st.sampled_from([A, B, C]), max_size=3),
        enough=st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 3)),
        keep=st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 3)),
    )
    def plan(self, warm: list[Spec], evict: list[Spec], enough: dict[Spec, int], keep: dict[Spec, int]) -> None:
        self.desk.follow(Plan(tuple(evict), tuple(warm), enough, keep))
        self.act()

    @invariant()
    def books_are_right(self) -> None:
        if not hasattr(self, "desk"):
            return
        desk, counts = self.desk, self.desk.counts
        assert sum(counts.values()) == desk.held <= desk.limits.sandboxes
        assert [counts["coming"], counts["leased"]] == [len(self.coming), len(self.leased)]
        assert sorted(desk._leaving) == sorted(self.leaving)
        assert desk.waiting == len(self.waiting)
        assert desk._stocking == sum(origin == "stock" for _, origin, _ in self.coming)
        assert desk.memory_free is None or desk.memory_free >= 0
        for shelf in desk.shelves.values():
            assert not (shelf.idle and shelf.waiting), "a parked sandbox and a request for it side by side"
        if self.waiting:
            assert self.coming or self.leased or self.leaving, "a request waits and nothing will ever happen"

    def teardown(self) -> None:
        """When everything that can end ends well, every request is served."""
        if not hasattr(self, "desk"):
            return
        for _ in range(1000):
            if self.leaving:
                self.depart(0)
            elif self.coming:
                self.come(0, 1)
            elif self.waiting and self.leased:
                self.give_back(0)
        assert not self.waiting


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)
