"""The gate: what it may start, when, and in which order; on virtual time only."""

from __future__ import annotations

import heapq
import sys
from itertools import combinations, pairwise
from typing import Literal

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from sandlot.adaptive import Adaptive
from sandlot.errors import BadRequest
from sandlot.pacing import Gate, Outcome, Pace, Turn

SERVED = Outcome("served")


def drain(gate: Gate, *, until_s: float, latency_s: float = 0.0) -> list[tuple[float, int]]:
    """Drive a gate on virtual time, each create taking `latency_s`; when each ticket started."""
    now, starts = 0.0, []
    ends: list[tuple[float, int]] = []
    while now <= until_s:
        while ends and ends[0][0] <= now:
            at, ticket = heapq.heappop(ends)
            gate.done(ticket, at, SERVED)
        turn = gate.poll(now)
        for ticket in turn.start:
            starts.append((now, ticket))
            heapq.heappush(ends, (now + latency_s, ticket))
        later = [t for t in (turn.again_at_s, ends[0][0] if ends else None) if t is not None]
        if not later:
            break
        now = max(now, min(later))
    return starts


def test_starts_everything_at_once_without_bounds() -> None:
    """Within the in-flight cap and without a rate, a queue starts in one turn."""
    gate = Gate(Pace(in_flight=100, adaptive=None))
    for ticket in range(100):
        gate.ask(ticket)
    assert Turn(tuple(range(100)), None) == gate.poll(0.0)


def test_never_more_in_flight_than_the_cap() -> None:
    """A full gate starts nothing until something ends, and names no time to look again."""
    gate = Gate(Pace(in_flight=2, adaptive=None))
    for ticket in range(3):
        gate.ask(ticket)
    assert Turn((0, 1), None) == gate.poll(0.0)
    assert Turn((), None) == gate.poll(100.0)
    gate.done(0, 100.0, SERVED)
    assert Turn((2,), None) == gate.poll(100.0)


def test_keeps_the_rate_in_the_long_run() -> None:
    """After the burst, tickets start 1 / rate apart."""
    gate = Gate(Pace(rate_per_s=10, burst=3, in_flight=1000, adaptive=None))
    for ticket in range(23):
        gate.ask(ticket)
    starts = drain(gate, until_s=100)
    assert [ticket for at, ticket in starts if at == 0.0] == [0, 1, 2]
    assert pytest.approx(2.0) == starts[-1][0]
    assert all(pytest.approx(0.1) == b - a for (a, _), (b, _) in pairwise(starts[2:]))


def test_a_withdrawn_ticket_never_starts() -> None:
    """Leaving the queue is final, and costs the others nothing."""
    gate = Gate(Pace(in_flight=1, adaptive=None))
    gate.ask(1)
    gate.ask(2)
    assert gate.withdraw(1)
    assert Turn((2,), None) == gate.poll(0.0)
    assert not gate.withdraw(2)
    assert not gate.withdraw(99)


def test_waits_as_long_as_it_was_told() -> None:
    """`Throttled` with a time closes the gate for exactly that long, and halves the limit."""
    gate = Gate(Pace(in_flight=64, adaptive=Adaptive(start=8)))
    gate.ask(1)
    gate.poll(0.0)
    gate.ask(2)
    gate.done(1, 5.0, Outcome("throttled", retry_after_s=3.0))
    assert Turn((), 8.0) == gate.poll(5.0)
    assert Turn((), 8.0) == gate.poll(7.99)
    assert Turn((2,), None) == gate.poll(8.0)
    assert gate.statistics().limit == 4


def test_throttled_without_a_time_pauses_too() -> None:
    """The default pause holds, also when the limit is not adaptive."""
    gate = Gate(Pace(in_flight=64, adaptive=None))
    gate.ask(1)
    gate.poll(0.0)
    gate.ask(2)
    gate.done(1, 0.0, Outcome("throttled"))
    assert Turn((), 1.0) == gate.poll(0.0)


def test_one_cut_a_round() -> None:
    """Creates that were under way when the limit was cut cannot cut it again."""
    gate = Gate(Pace(in_flight=64, adaptive=Adaptive(start=16)))
    for ticket in range(16):
        gate.ask(ticket)
    gate.poll(0.0)
    for ticket in range(16):
        gate.done(ticket, 1.0, Outcome("failed"))
    assert (gate.statistics().cuts, gate.statistics().limit) == (1, 12)


def test_what_says_nothing_about_load_changes_nothing() -> None:
    """A cancelled create or a bad request neither cuts nor raises the limit."""
    gate = Gate(Pace(in_flight=64, adaptive=Adaptive(start=4)))
    for ticket in range(8):
        gate.ask(ticket)
    gate.poll(0.0)
    gate.done(0, 9.0, Outcome("other"))
    assert (gate.statistics().cuts, gate.statistics().limit) == (0, 4)


def test_an_unused_limit_does_not_grow() -> None:
    """A client that makes one sandbox at a time does not earn the right to a stampede."""
    gate = Gate(Pace(in_flight=64, adaptive=Adaptive(start=4)))
    for ticket in range(50):
        gate.ask(ticket)
        gate.poll(float(ticket))
        gate.done(ticket, ticket + 0.1, SERVED)
    assert gate.statistics().limit == 4


def test_finds_the_level_of_a_machine_with_few_cores() -> None:
    """Against a server of 4 workers the limit settles where latency begins to grow, far below the cap."""
    limits = _against_workers(workers=4, requests=3000)
    late = sorted(limits[1000:])
    assert 4 <= late[len(late) // 2] <= 24


def test_follows_a_machine_that_became_slower() -> None:
    """When every create takes ten times longer for good, the limit does not stay at 1."""
    limits = _against_workers(workers=4, requests=4000, slower_after=1500)
    late = sorted(limits[3000:])
    assert 4 <= late[len(late) // 2] <= 24


def _against_workers(*, workers: int, requests: int, slower_after: int | None = None) -> list[int]:
    gate = Gate(Pace(in_flight=256, adaptive=Adaptive()))
    for ticket in range(requests):
        gate.ask(ticket, "image")
    free = [0.0] * workers
    ends: list[tuple[float, int]] = []
    limits: list[int] = []
    now = 0.0
    while True:
        for ticket in gate.poll(now).start:
            begin = max(now, heapq.heappop(free))
            slow = slower_after is not None and ticket > slower_after
            heapq.heappush(free, begin + (0.1 if slow else 0.01))
            heapq.heappush(ends, (begin + (0.1 if slow else 0.01), ticket))
        if not ends:
            return limits
        now, ticket = heapq.heappop(ends)
        gate.done(ticket, now, SERVED)
        limits.append(gate.statistics().limit)


def test_kinds_are_measured_apart() -> None:
    """A create of a slow image among fast ones is no sign of overload."""
    gate = Gate(Pace(in_flight=64, adaptive=Adaptive(start=8)))
    for ticket in range(40):
        gate.ask(ticket, "slow" if ticket % 8 == 0 else "fast")
    now = 0.0
    while gate.statistics().queued or gate.statistics().in_flight:
        started = gate.poll(now).start
        for ticket in started:
            gate.done(ticket, now + (60.0 if ticket % 8 == 0 else 0.01), SERVED)
        now += 61.0
    assert gate.statistics().cuts == 0


@pytest.mark.parametrize("how", ["failed", "broken"])
def test_a_kind_that_only_fails_slows_nobody_else(how: Literal["failed", "broken"]) -> None:
    """Once that is known few of it are under way, the others start as if it were not there, and the limit is not cut."""
    gate = Gate(Pace(in_flight=8, adaptive=Adaptive(start=8)))
    for ticket in range(100):
        gate.ask(ticket, "bad" if ticket % 2 else "good")
    fate: dict[int, Outcome] = {ticket: Outcome(how) if ticket % 2 else SERVED for ticket in range(100)}
    for ticket in gate.poll(0.0).start:
        gate.done(ticket, 1.0, fate[ticket])
    cuts, hanging, good = gate.statistics().cuts, 0, 0
    for second in range(1, 20):
        for ticket in gate.poll(float(second)).start:
            hanging += ticket % 2
            if not ticket % 2:
                good += 1
                gate.done(ticket, float(second), SERVED)
    assert (gate.statistics().cuts, hanging, good) == (cuts, 2, 46)


def test_ten_thousand_queued_cost_no_more_each_than_a_hundred() -> None:
    """Work for each request does not grow with the queue: counted in calls, not in time."""

    def calls(queued: int) -> float:
        gate = Gate(Pace(in_flight=8))
        for ticket in range(queued):
            gate.ask(ticket)
        count = 0

        def count_call(frame: object, event: str, arg: object) -> None:
            nonlocal count
            count += event in ("call", "c_call")

        sys.setprofile(count_call)
        try:
            for step in range(50):
                for ticket in gate.poll(float(step)).start:
                    gate.done(ticket, step + 0.5, SERVED)
                gate.withdraw(queued - 1 - step)
        finally:
            sys.setprofile(None)
        return count

    assert calls(10_000) == pytest.approx(calls(1_000), rel=0.05)


@pytest.mark.parametrize(
    "bad", [{"rate_per_s": 0}, {"rate_per_s": -1}, {"rate_per_s": float("nan")}, {"burst": 0}, {"in_flight": 0}]
)
def test_refuses_bounds_that_cannot_work(bad: dict[str, float]) -> None:
    """A pace that could never start anything is refused when it is made."""
    with pytest.raises(BadRequest):
        Pace(**bad)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bad", [{"start": 0}, {"tolerance": 1.0}, {"cut": 0.0}, {"cut": 1.0}, {"throttled_cut": 2.0}, {"pause_s": -1.0}]
)
def test_refuses_adaptive_rules_that_cannot_work(bad: dict[str, float]) -> None:
    """Rules that would grow on a cut, or never cut, are refused when they are made."""
    with pytest.raises(BadRequest):
        Adaptive(**bad)  # type: ignore[arg-type]


def test_a_ticket_is_used_once_at_a_time() -> None:
    """Asking twice with one ticket is a fault of the caller that shows at once."""
    gate = Gate(Pace())
    gate.ask(1)
    with pytest.raises(ValueError, match="in use"):
        gate.ask(1)
    gate.poll(0.0)
    with pytest.raises(ValueError, match="in use"):
        gate.ask(1)


def test_says_what_it_holds() -> None:
    """The text of a gate tells queue, flight, limit and cuts."""
    gate = Gate(Pace(in_flight=3, adaptive=None))
    for ticket in range(5):
        gate.ask(ticket)
    gate.poll(0.0)
    assert repr(gate) == "<Gate 2 queued, 3 of 3 in flight, 3 started, 0 cuts>"


paces = st.builds(
    Pace,
    rate_per_s=st.none() | st.floats(0.1, 1000),
    burst=st.integers(1, 50),
    in_flight=st.integers(1, 40),
    adaptive=st.none() | st.builds(Adaptive, start=st.integers(1, 10)),
)
outcomes = st.builds(Outcome, st.sampled_from(("served", "failed", "other"))) | st.builds(
    Outcome, st.just("throttled"), st.none() | st.floats(0, 5)
)


class AnySchedule(RuleBasedStateMachine):
    """Whatever happens: caps and rate hold, order is kept within a kind, nothing starts twice, the queue drains in the end."""

    @initialize(pace=paces)
    def begin(self, pace: Pace) -> None:
        self.pace, self.gate, self.now = pace, Gate(pace), 0.0
        self.asked = 0
        self.kinds: list[int] = []
        self.withdrawn: set[int] = set()
        self.started: list[tuple[float, int]] = []
        self.flight: list[int] = []

    def poll(self) -> Turn:
        turn = self.gate.poll(self.now)
        self.started += [(self.now, ticket) for ticket in turn.start]
        self.flight += turn.start
        assert len(self.flight) <= self.pace.in_flight
        return turn

    @rule(kind=st.integers(0, 2))
    def ask(self, kind: int) -> None:
        self.gate.ask(self.asked, kind)
        self.kinds.append(kind)
        self.asked += 1
        self.poll()

    @rule(ticket=st.integers(0, 60))
    def withdraw(self, ticket: int) -> None:
        if self.gate.withdraw(ticket):
            self.withdrawn.add(ticket)

    @precondition(lambda self: self.flight)
    @rule(position=st.integers(0, 60), outcome=outcomes)
    def end(self, position: int, outcome: Outcome) -> None:
        self.gate.done(self.flight.pop(position % len(self.flight)), self.now, outcome)
        self.poll()

    @rule(seconds=st.floats(0, 2))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.poll()

    def teardown(self) -> None:
        if hasattr(self, "gate"):
            self.drain()
            order = [ticket for _, ticket in self.started]
            for kind in range(3):
                of_kind = [ticket for ticket in order if self.kinds[ticket] == kind]
                assert of_kind == sorted(of_kind)
            assert len(order) == len(set(order))
            assert set(order) | self.withdrawn == set(range(self.asked))
            assert not set(order) & self.withdrawn
            self.check_rate()

    def drain(self) -> None:
        while True:
            while self.flight:
                self.gate.done(self.flight.pop(), self.now, SERVED)
            turn = self.poll()
            if not self.flight:
                if turn.again_at_s is None:
                    return
                assert turn.again_at_s > self.now
                self.now = turn.again_at_s
                assert self.poll().start, "the time it named must bring a start"

    def check_rate(self) -> None:
        if self.pace.rate_per_s is None:
            return
        times = [at for at, _ in self.started]
        for first, last in combinations(range(len(times)), 2):
            allowed = self.pace.burst + (times[last] - times[first]) * self.pace.rate_per_s
            assert last - first + 1 <= allowed + 1e-6


TestAnySchedule = AnySchedule.TestCase
TestAnySchedule.settings = settings(max_examples=150, deadline=None)


def test_a_long_queue_drains_in_virtual_time() -> None:
    """10,000 requests through a rate of 1,000 a second take ten seconds of the clock that is passed in."""
    gate = Gate(Pace(rate_per_s=1000, burst=1, in_flight=10_000, adaptive=None))
    for ticket in range(10_000):
        gate.ask(ticket)
    assert pytest.approx(9.999) == drain(gate, until_s=100)[-1][0]
