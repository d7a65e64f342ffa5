"""How many creates may be under way at a time: limits that find their own level. Pure; they hold no clock.

Two rules, since what a queue looks like differs:

    Adaptive      for one machine. Grows by addition and is cut by a factor (Chiu and Jain 1989) when a create takes a
                  multiple of what its kind took uncrowded: a queue shows as latency before it shows as errors (the idea
                  of TCP Vegas). It is cut once a round: creates that were under way when it was cut say nothing new.
    QueueTarget   for a cluster, which clients share that know nothing of each other. Each keeps the same number of its
                  creates waiting in the cluster's queues, and as many more under way as are being worked on (FAST TCP,
                  Jin, Wei and Low 2004). Queues that serve in order then serve every client at the same rate, whoever
                  came first and however much each has to do, and a cluster that has a queue is never idle. What a
                  cluster can do, from one sandbox a second to thousands, need not be known.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from sandlot.errors import BadRequest

Signal = Literal["served", "failed", "throttled"]

BASELINE_KINDS: Final = 4096  # kinds of create whose usual latency is remembered, least recently used out first


@dataclass(frozen=True, slots=True, kw_only=True)
class Adaptive:
    """How the limit moves on one machine. All factors are without unit."""

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
        if self.start < 1 or not self.tolerance > 1:
            raise BadRequest("adaptive pace needs start >= 1 and tolerance > 1")
        _check_cuts(self.cut, self.throttled_cut, self.pause_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTarget:
    """How the limit moves on a cluster. Every client of a cluster should go by the same rules."""

    waiting: int = 64
    """Creates of ours that shall wait in the cluster's queues. More keeps a cluster busy that serves in bursts; less lets a
    client that comes new be served sooner: it waits behind this many of each other client."""
    start: int = 64
    """Where the limit begins. It doubles with each round in which hardly any waited."""
    least: int = 8
    """It is never cut below."""
    tolerance: float = 2.0
    """What a create takes beyond this multiple of the quickest round's mean counts as waiting, too: nodes have queues, but
    do not tell. Starts vary by up to so much by nature."""
    haste: float = 0.5
    """How much of the way to its level the limit goes in a round."""
    cut: float = 0.75
    """What remains of the limit after an infrastructure failure."""
    throttled_cut: float = 0.5
    """What remains after the system said "later"."""
    pause_s: float = 1.0
    """Seconds to start nothing after "later" without a time."""

    def __post_init__(self) -> None:
        if not (1 <= self.least <= self.start and self.waiting >= 1):
            raise BadRequest("a queue target needs 1 <= least <= start and waiting >= 1")
        if not (self.tolerance >= 1 and 0 < self.haste <= 1):
            raise BadRequest("a queue target needs tolerance >= 1 and 0 < haste <= 1")
        _check_cuts(self.cut, self.throttled_cut, self.pause_s)


def _check_cuts(cut: float, throttled_cut: float, pause_s: float) -> None:
    if not (0 < cut < 1 and 0 < throttled_cut < 1):
        raise BadRequest("what remains after a cut must be between 0 and 1")
    if not pause_s >= 0:
        raise BadRequest(f"pause_s must not be negative, got {pause_s}")


@dataclass(frozen=True, slots=True)
class Trial:
    """One create that has ended, as a limit sees it. Times in seconds."""

    kind: Hashable
    started_s: float
    ended_s: float
    latency_s: float
    """What it took, without parts that say nothing about load, and without `queued_s`."""
    queued_s: float
    """What it is known to have spent waiting in queues of the system."""
    alone: bool
    """Nothing else of ours was under way when it started."""
    crowded: bool
    """The limit was in the way of others. Only such a limit may grow: an idle client earns no right to a stampede."""


class Limit(Protocol):
    """A bound on creates under way."""

    cuts: int

    @property
    def now(self) -> int: ...

    def learn(self, trial: Trial, signal: Signal) -> None: ...


def limit_by(rules: Adaptive | QueueTarget | None, most: int, now: float) -> Limit:
    """A limit by these rules that never exceeds `most`; None: it is always `most`."""
    if rules is None:
        return _Fixed(most)
    return _Multiple(rules, most, now) if isinstance(rules, Adaptive) else _Queued(rules, most, now)


class _Fixed:
    def __init__(self, most: int) -> None:
        self.now: Final = most
        self.cuts = 0

    def learn(self, trial: Trial, signal: Signal) -> None:
        """Nothing."""


class _Multiple:
    """`Adaptive` at work."""

    def __init__(self, rules: Adaptive, most: int, now: float) -> None:
        self._rules = rules
        self._most = most
        self._limit = float(min(rules.start, most))
        self._slow_start = True
        self._cut_s = now
        self._baselines: OrderedDict[Hashable, float] = OrderedDict()
        self.cuts = 0

    @property
    def now(self) -> int:
        return int(self._limit)

    def learn(self, trial: Trial, signal: Signal) -> None:
        if signal == "throttled":
            self._cut(trial, self._rules.throttled_cut)
        elif signal == "failed" or self._is_slow(trial):
            self._cut(trial, self._rules.cut)
        elif trial.crowded:
            self._limit = min(float(self._most), self._limit + (1.0 if self._slow_start else 1.0 / self._limit))

    def _cut(self, trial: Trial, remains: float) -> None:
        if trial.started_s < self._cut_s:
            return
        self._limit = max(1.0, self._limit * remains)
        self._slow_start = False
        self._cut_s = trial.ended_s
        self.cuts += 1

    def _is_slow(self, trial: Trial) -> bool:
        baseline = self._baselines.pop(trial.kind, None)
        slow = baseline is not None and trial.latency_s > self._rules.tolerance * baseline and not trial.alone
        if baseline is None or trial.alone:
            # Nothing of ours was in its way: this is what it costs now, be it more or less than before.
            self._baselines[trial.kind] = trial.latency_s
        else:
            self._baselines[trial.kind] = min(baseline, trial.latency_s)
        if len(self._baselines) > BASELINE_KINDS:
            self._baselines.popitem(last=False)
        return slow


class _Queued:
    """`QueueTarget` at work.

    Of the limit W, a create that spends D of its T seconds waiting in queues has W * D / T companions there (Little 1961).
    What the cluster says it has waited counts in full; of the rest, what exceeds the quickest round so far.
    """

    def __init__(self, rules: QueueTarget, most: int, now: float) -> None:
        self._rules = rules
        self._most = float(most)
        self._least = float(min(rules.least, most))
        self._limit = float(min(rules.start, most))
        self._cut_s = now
        self._round = _Round(now)
        self._quickest_s: float | None = None
        self.cuts = 0

    @property
    def now(self) -> int:
        return int(self._limit)

    def learn(self, trial: Trial, signal: Signal) -> None:
        if signal != "served":
            self._cut(trial, self._rules.throttled_cut if signal == "throttled" else self._rules.cut)
            return
        self._round.add(trial)
        if trial.started_s >= self._round.began_s:
            self._settle(self._round)
            self._round = _Round(trial.ended_s)

    def _settle(self, last: _Round) -> None:
        """The end of a round: every create under way now has started in it."""
        latency_s = last.latency_s / last.n
        if self._quickest_s is None or latency_s < self._quickest_s or not last.crowded:
            self._quickest_s = latency_s
        queued_s = last.queued_s / last.n + max(0.0, latency_s - self._rules.tolerance * self._quickest_s)
        waiting = self._limit * queued_s / max(last.total_s / last.n, 1e-9)
        if waiting > self._rules.waiting / 4:
            self._limit += self._rules.haste * (self._rules.waiting - waiting)
        elif last.crowded:
            self._limit *= 2
        self._limit = min(self._most, max(self._least, self._limit))

    def _cut(self, trial: Trial, remains: float) -> None:
        if trial.started_s < self._cut_s:
            return
        self._limit = max(self._least, self._limit * remains)
        self._cut_s = trial.ended_s
        self.cuts += 1


@dataclass(slots=True)
class _Round:
    """Creates that ended until the first one ended that had started meanwhile; sums of seconds."""

    began_s: float
    n: int = 0
    total_s: float = 0.0
    queued_s: float = 0.0
    latency_s: float = 0.0
    crowded: bool = False

    def add(self, trial: Trial) -> None:
        self.n += 1
        self.total_s += trial.ended_s - trial.started_s
        self.queued_s += trial.queued_s
        self.latency_s += trial.latency_s
        self.crowded = self.crowded or trial.crowded
