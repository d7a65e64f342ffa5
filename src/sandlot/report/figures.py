"""From results and events to the figures of the report. Pure: no clock, no files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from sandlot.report.reading import Happened, Rolled, Run

PHASES: Final = ("acquire", "agent", "quiesce", "judge")
SLOWEST: Final = 10
POINTS: Final = 400
"""Steps of a curve over time: more than a plot can show apart."""


class Spread(msgspec.Struct, frozen=True):
    """How a set of seconds is spread; nearest rank, so each figure is one that was measured."""

    n: int
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread | None:
        ordered = sorted(values)
        if not ordered:
            return None

        def rank(share: float) -> float:
            return ordered[min(len(ordered) - 1, max(0, -(-int(share * len(ordered) * 1000) // 1000) - 1))]

        return cls(len(ordered), rank(0.5), rank(0.9), rank(0.99), ordered[-1])


class TaskRow(msgspec.Struct, frozen=True):
    """One task's group."""

    task: str
    rollouts: int
    scored: int
    lost: int
    mean_reward: float | None
    mean_seconds: float


class FailureRow(msgspec.Struct, frozen=True):
    """Tries that failed alike."""

    phase: str
    kind: str
    tries: int
    lost: int
    """Rollouts that ended with it."""
    example: str


class Curve(msgspec.Struct, frozen=True):
    """How many rollouts were in a phase, over seconds since the beginning."""

    phase: str
    seconds: tuple[float, ...]
    counts: tuple[int, ...]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """The report as numbers; `report.json` is this value."""

    agent: str
    asked: int
    finished: int
    scored: int
    lost: int
    mean_reward: float | None
    """Over scored rollouts only; lost ones are in no average."""
    rewards: Mapping[str, int]
    reasons: Mapping[str, int]
    wall_s: float
    rollouts_per_minute: float | None
    sandboxes: Mapping[str, int]
    """created, gone and left, as the provider counted when it closed."""
    first_command: Spread | None
    """Seconds from asking for a sandbox to the end of its first command."""
    phases: Mapping[str, Spread]
    waiting_share: float | None
    """Of all time that rollouts took: how much they waited for a sandbox."""
    stalled_share: float | None
    """Of the run's length: how much of it nothing but waiting for sandboxes went on."""
    tasks: tuple[TaskRow, ...]
    slowest: tuple[TaskRow, ...]
    failures: tuple[FailureRow, ...]
    left_out: Mapping[str, int]
    """Why parts of agents' changes did not reach the judge: files by reason."""
    controls: int
    uncontrolled: int
    curves: tuple[Curve, ...]
    first_commands_s: tuple[float, ...]
    unreadable: int


def make_figures(run: Run) -> Figures:
    """All figures of a run."""
    results = run.results
    scored = [result for result in results if result.reward is not None]
    lost = len(results) - len(scored)
    firsts = first_commands(run.events)
    curves, stalled, wall = over_time(run.events)
    tasks = task_rows(results)
    reasons = Counter(result.verdict.reason for result in scored if result.verdict is not None)
    return Figures(
        agent=str(run.request.get("agent", "")),
        asked=_asked(run),
        finished=len(results),
        scored=len(scored),
        lost=lost,
        mean_reward=sum(result.reward or 0.0 for result in scored) / len(scored) if scored else None,
        rewards=dict(sorted(Counter(f"{result.reward:g}" for result in scored).items())),
        reasons=dict(reasons.most_common()),
        wall_s=wall,
        rollouts_per_minute=60 * len(results) / wall if wall > 0 else None,
        sandboxes=closing(run.events),
        first_command=Spread.of(firsts),
        phases={phase: spread for phase in PHASES if (spread := Spread.of(_phase(results, phase))) is not None},
        waiting_share=_waiting_share(results),
        stalled_share=stalled / wall if wall > 0 else None,
        tasks=tasks,
        slowest=tuple(sorted(tasks, key=lambda row: -row.mean_seconds)[:SLOWEST]),
        failures=failure_rows(results),
        left_out=dict(_left_out(results).most_common()),
        controls=sum(result.verdict.controls for result in scored if result.verdict is not None),
        uncontrolled=sum(result.verdict.uncontrolled for result in scored if result.verdict is not None),
        curves=curves,
        first_commands_s=tuple(firsts),
        unreadable=run.unreadable,
    )


def first_commands(events: Iterable[Happened]) -> list[float]:
    """Seconds from the request to the first command's success, of each sandbox."""
    parts = ("queue_s", "create_s", "first_command_s")
    usable = (event.data for event in events if event.kind == "sandbox.usable")
    return [sum(_number(data.get(part)) for part in parts) for data in usable]


def closing(events: Iterable[Happened]) -> dict[str, int]:
    """What the providers counted when they closed, all parts of a continued run together."""
    total: Counter[str] = Counter()
    for event in events:
        if event.kind == "provider.closed":
            total.update({name: int(_number(event.data.get(name))) for name in ("created", "gone", "left")})
    return dict(total)


def task_rows(results: Iterable[Rolled]) -> tuple[TaskRow, ...]:
    """One row a task, by name."""
    groups: dict[str, list[Rolled]] = {}
    for result in results:
        groups.setdefault(result.task, []).append(result)
    rows = []
    for task, members in sorted(groups.items()):
        rewards = [member.reward for member in members if member.reward is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        seconds = sum(member.seconds for member in members) / len(members)
        rows.append(TaskRow(task, len(members), len(rewards), len(members) - len(rewards), mean, seconds))
    return tuple(rows)


def failure_rows(results: Iterable[Rolled]) -> tuple[FailureRow, ...]:
    """Failed tries by phase and class, the most frequent first."""
    tries: Counter[tuple[str, str]] = Counter()
    lost: Counter[tuple[str, str]] = Counter()
    examples: dict[tuple[str, str], str] = {}
    for result in results:
        for attempt in result.attempts:
            key = (attempt.phase, attempt.kind)
            tries[key] += 1
            examples.setdefault(key, attempt.message)
        if result.reward is None and result.attempts:
            lost[result.attempts[-1].phase, result.attempts[-1].kind] += 1
    return tuple(FailureRow(*key, count, lost[key], examples[key]) for key, count in tries.most_common())


def over_time(events: Sequence[Happened]) -> tuple[tuple[Curve, ...], float, float]:
    """Rollouts in each phase over time; seconds in which all that ran were acquiring; the run's length in seconds.

    A run that was stopped and continued is shown without the time in between.
    """
    now = 0.0
    last: Happened | None = None
    counts: Counter[str] = Counter()
    steps: list[tuple[float, dict[str, int]]] = []
    stalled = 0.0
    for event in events:
        begun_anew = last is not None and event.seq <= last.seq
        span = 0.0 if last is None or begun_anew else event.mono_s - last.mono_s
        if begun_anew:
            counts.clear()
        if counts["acquire"] > 0 and counts.total() == counts["acquire"]:
            stalled += span
        now, last = now + span, event
        if event.kind in ("rollout.phase", "rollout.phase_done"):
            counts[str(event.data.get("phase"))] += 1 if event.kind == "rollout.phase" else -1
            steps.append((now, dict(counts)))
    return tuple(_curve(phase, steps) for phase in PHASES if steps), stalled, now


def _curve(phase: str, steps: Sequence[tuple[float, dict[str, int]]]) -> Curve:
    """At most `POINTS` steps: of those that fall together the largest count stays, so that no peak is hidden."""
    end = steps[-1][0] or 1.0
    slots: dict[int, tuple[float, int]] = {}
    for seconds, counts in steps:
        slot = int(seconds / end * (POINTS - 1))
        count = counts.get(phase, 0)
        if slot not in slots or count >= slots[slot][1]:
            slots[slot] = (seconds, count)
    points = sorted(slots.values())
    return Curve(phase, tuple(round(seconds, 3) for seconds, _ in points), tuple(count for _, count in points))


def _asked(run: Run) -> int:
    tasks, per_task = run.request.get("tasks"), run.request.get("per_task")
    if isinstance(tasks, dict) and isinstance(per_task, int):
        return len(tasks) * per_task
    return len(run.results)


def _phase(results: Iterable[Rolled], phase: str) -> list[float]:
    return [result.phases_s[phase] for result in results if phase in result.phases_s]


def _waiting_share(results: Sequence[Rolled]) -> float | None:
    total = sum(result.seconds for result in results)
    return sum(_phase(results, "acquire")) / total if total > 0 else None


def _left_out(results: Iterable[Rolled]) -> Counter[str]:
    found: Counter[str] = Counter()
    for result in results:
        for left_out in result.verdict.left_out if result.verdict is not None else ():
            found[left_out.reason] += left_out.files
    return found


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
