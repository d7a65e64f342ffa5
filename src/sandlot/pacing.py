"""When to start the next create: a pure gate. It holds no clock, starts nothing and waits for nothing.

Whoever drives it says `ask`, `withdraw` and `done`, and calls `poll(now)` for what to start now and when to look again.
First come, first served. No call and no start costs more with a longer queue.

Three bounds hold together:
    rate        a token bucket: `rate_per_s` in the long run, `burst` at once
    in flight   never more than `in_flight` creates at a time
    adaptive    a limit on creates in flight that finds its own level (`sandlot.adaptive`)
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from sandlot.adaptive import Adaptive, QueueTarget, Signal, Trial, limit_by
from sandlot.errors import BadRequest
from sandlot.lanes import Lanes

Kind = Literal["served", "failed", "throttled", "broken", "other"]

ENOUGH: Final = 1 - 1e-9  # a token, allowing for rounding: polling at the time named must start something
_SIGNALS: Final[Mapping[Kind, Signal]] = {"served": "served", "failed": "failed", "throttled": "throttled"}
"""Ends of creates that say something about load."""
PAUSE_S: Final = 1.0  # to start nothing after "later" without a time, where no adaptive rule says otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The bounds of one gate."""

    rate_per_s: float | None = None
    """Creates started a second in the long run. None: no bound."""
    burst: int = 32
    """Creates that may start at once after a quiet time. Only with a rate."""
    in_flight: int = 64
    """Creates under way at a time, at most."""
    adaptive: Adaptive | QueueTarget | None = field(default_factory=Adaptive)
    """None: `in_flight` alone holds."""

    def __post_init__(self) -> None:
        if self.rate_per_s is not None and not self.rate_per_s > 0:
            raise BadRequest(f"rate_per_s must be positive, got {self.rate_per_s}")
        if self.burst < 1 or self.in_flight < 1:
            raise BadRequest(f"burst and in_flight must be at least 1, got {self.burst} and {self.in_flight}")


def cluster_pace() -> Pace:
    """For backends whose creates are served by a cluster that others use, too.

    The cap is no target: it bounds the memory of creates that all pull a large image at once.
    """
    return Pace(in_flight=4096, adaptive=QueueTarget())


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a create that was started ended, as far as the pace is concerned."""

    kind: Kind
    """`served`; `failed` for infrastructure; `throttled`: told to come back later; `broken`: by the fault of its kind,
    such as an image that is not there; `other`: says nothing (cancelled, bad request)."""
    retry_after_s: float | None = None
    """With `throttled`: seconds to wait, when the system said so."""
    aside_s: float = 0.0
    """With `served`: seconds that say nothing about load, such as fetching an image."""
    queued_s: float = 0.0
    """With `served`: seconds that it is known to have waited in queues of the system, such as a scheduler's."""


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
    """First come, first served, within the bounds of `pace`. Times are seconds on any clock that does not go back.

    One exception to the order: of a kind that only fails, few are under way (`sandlot.lanes`), so that the others
    pass it by; its failures cut nobody's limit. The first success ends that.
    """

    def __init__(self, pace: Pace, now: float = 0.0) -> None:
        self.pace = pace
        self._queue = Lanes()
        self._running: dict[int, _Running] = {}
        self._tokens = float(pace.burst)
        self._refilled_s = now
        self._closed_until_s = now
        self._limit = limit_by(pace.adaptive, pace.in_flight, now)
        self._pause_s = PAUSE_S if pace.adaptive is None else pace.adaptive.pause_s
        self._started = 0

    def ask(self, ticket: int, kind: Hashable = None) -> None:
        """Queue a create. `kind` groups creates that should take equally long, such as those of one image.

        Raises:
            ValueError: the ticket is queued or under way already.
        """
        if ticket in self._queue or ticket in self._running:
            raise ValueError(f"ticket {ticket} is in use")
        self._queue.add(ticket, kind)

    def withdraw(self, ticket: int) -> bool:
        """Leave the queue. False when it is not queued: it was started and needs `done`, or is unknown."""
        return self._queue.remove(ticket)

    def done(self, ticket: int, now: float, outcome: Outcome) -> bool:
        """A started create has ended. True when that cut the adaptive limit.

        Raises:
            KeyError: the ticket is not under way.
        """
        running = self._running.pop(ticket)
        crowded = self._queue.ready or len(self._running) + 1 >= self._limit.now
        if outcome.kind == "throttled":
            pause = self._pause_s if outcome.retry_after_s is None else outcome.retry_after_s
            self._closed_until_s = max(self._closed_until_s, now + pause)
        ailing = self._queue.ended(running.kind, outcome.kind)
        signal = _SIGNALS.get(outcome.kind)
        if signal is None or (ailing and signal == "failed"):
            return False
        cuts, latency_s = self._limit.cuts, max(0.0, now - running.started_s - outcome.aside_s - outcome.queued_s)
        trial = Trial(running.kind, running.started_s, now, latency_s, outcome.queued_s, running.alone, crowded)
        self._limit.learn(trial, signal)
        return self._limit.cuts > cuts

    def poll(self, now: float) -> Turn:
        """What starts now, and when to look again."""
        self._refill(now)
        start: list[int] = []
        while len(self._running) < self._limit.now and self._blocked_until(now) is None:
            taken = self._queue.take()
            if taken is None:
                break
            ticket, kind = taken
            self._running[ticket] = _Running(kind, now, alone=not self._running)
            self._tokens -= self.pace.rate_per_s is not None
            start.append(ticket)
        self._started += len(start)
        waiting_for_time = self._queue.ready and len(self._running) < self._limit.now
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
