"""When to start the next create: a pure gate. It holds no clock, starts nothing and waits for nothing.

Whoever drives it says `ask`, `withdraw` and `done`, and calls `poll(now)` for what to start now and when to look again.
First come, first served. Every call is O(1), `poll` O(1) for each start, whatever the length of the queue.

Three bounds hold together:
    rate        a token bucket: `rate_per_s` in the long run, `burst` at once
    in flight   never more than `in_flight` creates at a time
    adaptive    a limit on creates in flight that finds its own level by additive increase and multiplicative decrease
                (Chiu and Jain 1989): clients that know nothing of each other converge to fair shares. It is cut when the
                system says "later", when a create fails for infrastructure, and when a create takes `tolerance` times
                as long as creates of its kind did without crowding (the idea of TCP Vegas: a queue shows as latency
                before it shows as errors). It is cut once a round: creates that were already under way when it was cut
                say nothing new.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Literal

from sandlot.errors import BadRequest

Kind = Literal["served", "failed", "throttled", "other"]

BASELINE_KINDS: Final = 4096  # kinds of create whose usual latency is remembered, least recently used out first
ENOUGH: Final = 1 - 1e-9  # a token, allowing for rounding: polling at the time named must start something


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """How the limit on creates in flight moves. All factors are without unit."""

    start: int = 4
    """Where it begins: low, since it doubles with each round that is served (slow start) until its first cut."""
    tolerance: float = 4.0
    """A create this many times slower than its kind uncrowded is a sign of overload. Two busy cores give 2 to 3."""
    cut: float = 0.75
    """What remains of the limit after an overload or an infrastructure failure."""
    throttled_cut: float = 0.5
    """What remains after the system said "later"."""
    pause_s: float = 1.0
    """Seconds to start nothing after "later" without a time."""

    def __post_init__(self) -> None:
        if self.start < 1 or self.tolerance <= 1 or self.pause_s < 0:
            raise BadRequest("adaptive pace needs start >= 1, tolerance > 1 and pause_s >= 0")
        if not (0 < self.cut < 1 and 0 < self.throttled_cut < 1):
            raise BadRequest("what remains after a cut must be between 0 and 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The bounds of one gate."""

    rate_per_s: float | None = None
    """Creates started a second in the long run. None: no bound."""
    burst: int = 32
    """Creates that may start at once after a quiet time. Only with a rate."""
    in_flight: int = 64
    """Creates under way at a time, at most."""
    adaptive: Adaptive | None = field(default_factory=Adaptive)
    """None: `in_flight` alone holds."""

    def __post_init__(self) -> None:
        if self.rate_per_s is not None and not self.rate_per_s > 0:
            raise BadRequest(f"rate_per_s must be positive, got {self.rate_per_s}")
        if self.burst < 1 or self.in_flight < 1:
            raise BadRequest(f"burst and in_flight must be at least 1, got {self.burst} and {self.in_flight}")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a create that was started ended, as far as the pace is concerned."""

    kind: Kind
    """`served`; `failed` for infrastructure; `throttled`: told to come back later; `other`: says nothing about load
    (cancelled, bad request)."""
    retry_after_s: float | None = None
    """With `throttled`: seconds to wait, when the system said so."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What to do now."""

    start: tuple[int, ...]
    """Tickets whose creates begin now, in order."""
    again_at_s: float | None
    """When to poll again if nothing else happens before. None: only `ask` or `done` can change anything."""


@dataclass(frozen=True, slots=True)
class GateStatistics:
    """A gate at one moment."""

    queued: int = 0
    in_flight: int = 0
    limit: int = 0
    """Creates that may be under way now."""
    started: int = 0
    cuts: int = 0
    """How often the adaptive limit was cut."""


@dataclass(slots=True, eq=False)
class _Running:
    kind: Hashable
    started_s: float
    alone: bool
    """Nothing else of ours was under way when it started."""


class Gate:
    """First come, first served, within the bounds of `pace`. Times are seconds on any clock that does not go back."""

    def __init__(self, pace: Pace, now: float = 0.0) -> None:
        self.pace = pace
        self._queue: OrderedDict[int, Hashable] = OrderedDict()
        self._running: dict[int, _Running] = {}
        self._tokens = float(pace.burst)
        self._refilled_s = now
        self._closed_until_s = now
        self._limit = _AdaptiveLimit(pace.adaptive, pace.in_flight, now)
        self._started = 0

    def ask(self, ticket: int, kind: Hashable = None) -> None:
        """Queue a create. `kind` groups creates that should take equally long, such as those of one image.

        Raises:
            ValueError: the ticket is queued or under way already.
        """
        if ticket in self._queue or ticket in self._running:
            raise ValueError(f"ticket {ticket} is in use")
        self._queue[ticket] = kind

    def withdraw(self, ticket: int) -> bool:
        """Leave the queue. False when it is not queued: it was started and needs `done`, or is unknown."""
        return self._queue.pop(ticket, self) is not self

    def done(self, ticket: int, now: float, outcome: Outcome) -> bool:
        """A started create has ended. True when that cut the adaptive limit.

        Raises:
            KeyError: the ticket is not under way.
        """
        running = self._running.pop(ticket)
        if outcome.kind == "throttled":
            pause = self._limit.pause_s if outcome.retry_after_s is None else outcome.retry_after_s
            self._closed_until_s = max(self._closed_until_s, now + pause)
        crowded = bool(self._queue) or len(self._running) + 1 >= self._limit.now
        cuts = self._limit.cuts
        self._limit.learn(running, now, outcome, crowded=crowded)
        return self._limit.cuts > cuts

    def poll(self, now: float) -> Turn:
        """What starts now, and when to look again."""
        self._refill(now)
        start: list[int] = []
        while self._queue and self._blocked_until(now) is None and len(self._running) < self._limit.now:
            ticket, kind = self._queue.popitem(last=False)
            self._running[ticket] = _Running(kind, now, alone=not self._running)
            self._tokens -= self.pace.rate_per_s is not None
            start.append(ticket)
        self._started += len(start)
        waiting_for_time = self._queue and len(self._running) < self._limit.now
        return Turn(tuple(start), self._blocked_until(now) if waiting_for_time else None)

    def statistics(self) -> GateStatistics:
        return GateStatistics(len(self._queue), len(self._running), self._limit.now, self._started, self._limit.cuts)

    def __repr__(self) -> str:
        s = self.statistics()
        return f"<Gate {s.queued} queued, {s.in_flight} of {s.limit} in flight, {s.started} started, {s.cuts} cuts>"

    def _refill(self, now: float) -> None:
        if self.pace.rate_per_s is None or now <= self._refilled_s:
            return
        earned = (now - self._refilled_s) * self.pace.rate_per_s
        self._tokens = min(float(self.pace.burst), self._tokens + earned)
        self._refilled_s = now

    def _blocked_until(self, now: float) -> float | None:
        """The time before which nothing may start, or None when it may start now."""
        until = self._closed_until_s
        if self.pace.rate_per_s is not None and self._tokens < ENOUGH:
            until = max(until, self._refilled_s + (1 - self._tokens) / self.pace.rate_per_s)
        return until if until > now else None


class _AdaptiveLimit:
    """The moving bound on creates in flight."""

    def __init__(self, rules: Adaptive | None, most: int, now: float) -> None:
        self._rules = rules
        self._most = most
        self._limit = float(most if rules is None else min(rules.start, most))
        self._slow_start = True
        self._cut_s = now
        self._baselines: OrderedDict[Hashable, float] = OrderedDict()
        self.cuts = 0

    @property
    def now(self) -> int:
        return int(self._limit)

    @property
    def pause_s(self) -> float:
        return Adaptive().pause_s if self._rules is None else self._rules.pause_s

    def learn(self, running: _Running, now: float, outcome: Outcome, *, crowded: bool) -> None:
        rules = self._rules
        if rules is None or outcome.kind == "other":
            return
        if outcome.kind == "throttled":
            self._cut(running, now, rules.throttled_cut)
        elif outcome.kind == "failed" or self._is_slow(running, now - running.started_s, rules):
            self._cut(running, now, rules.cut)
        elif crowded:
            # Only a limit that is in the way may grow: an idle client must not earn the right to a stampede.
            self._limit = min(float(self._most), self._limit + (1.0 if self._slow_start else 1.0 / self._limit))

    def _cut(self, running: _Running, now: float, remains: float) -> None:
        if running.started_s < self._cut_s:
            return
        self._limit = max(1.0, self._limit * remains)
        self._slow_start = False
        self._cut_s = now
        self.cuts += 1

    def _is_slow(self, running: _Running, latency_s: float, rules: Adaptive) -> bool:
        baseline = self._baselines.pop(running.kind, None)
        slow = baseline is not None and latency_s > rules.tolerance * baseline and not running.alone
        if baseline is None or running.alone:
            # Nothing of ours was in its way: this is what it costs now, be it more or less than before.
            self._baselines[running.kind] = latency_s
        else:
            self._baselines[running.kind] = min(baseline, latency_s)
        if len(self._baselines) > BASELINE_KINDS:
            self._baselines.popitem(last=False)
        return slow
