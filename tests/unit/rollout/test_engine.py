"""Rollouts over a backend that is not real, on virtual time: phases, limits, retries, budgets, order of service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from sandlot.errors import BadRequest, Capacity, TransportLost
from sandlot.pool import Pool, PoolLimits
from sandlot.provider import Provider
from sandlot.rollout import PhaseLimits, RolloutResult, RolloutSettings, group_results, rollouts, whole_groups
from sandlot.rollout.judging import Lease
from sandlot.sandbox import Sandbox
from sandlot.spec import Spec
from sandlot.tasks.change import Change
from sandlot.tasks.task import Task
from sandlot.tasks.verdict import Verdict
from sandlot.testing.fake import FakeBackend, Point

pytestmark = [pytest.mark.looptime, pytest.mark.asyncio]

RESOLVED = Verdict(reason="resolved")


@dataclass
class ScriptedJudge:
    """Leases a sandbox, takes its time, and does as it is told."""

    seconds: float = 1.0
    leases: bool = True
    failures: list[Exception] = field(default_factory=list)
    judging: int = 0
    most: int = 0

    async def take(self, box: Sandbox, task: Task) -> Change:
        return Change(None)

    async def judge(self, task: Task, change: Change, lease: Lease) -> Verdict:
        self.judging += 1
        self.most = max(self.most, self.judging)
        try:
            if self.failures:
                raise self.failures.pop(0)
            if self.leases:
                async with lease(task.spec):
                    await asyncio.sleep(self.seconds)
            return RESOLVED
        finally:
            self.judging -= 1

    async def judge_in_place(self, box: Sandbox, task: Task) -> Verdict:
        await asyncio.sleep(self.seconds)
        return Verdict(reason="resolved", where="in_place")


def _tasks(*names: str, **changes: Any) -> list[Task]:
    return [Task(id=name, spec=Spec(), problem="", fail_to_pass=("t",), **changes) for name in names]


def _agent(seconds: float = 1.0, error: Exception | None = None) -> Callable[[Sandbox, Task], Any]:
    async def solve(box: Sandbox, task: Task) -> None:
        await asyncio.sleep(seconds)
        if error is not None:
            raise error

    return solve


@asynccontextmanager
async def _pool(backend: FakeBackend, sandboxes: int = 64) -> AsyncIterator[Pool]:
    async with Provider(backend) as provider, Pool(provider, limits=PoolLimits(sandboxes=sandboxes)) as pool:
        yield pool
    assert backend.existing == frozenset()


async def _all(pool: Pool, tasks: list[Task], agent: Any, **options: Any) -> list[RolloutResult]:
    return [result async for result in rollouts(tasks, agent, pool, **{"judge": ScriptedJudge(), **options})]


async def test_every_task_is_run_as_often_as_asked() -> None:
    """Groups are whole, and each phase is timed."""
    async with _pool(FakeBackend()) as pool:
        results = await _all(pool, _tasks("a", "b"), _agent(), per_task=3)
    assert [(group.task, len(group.results), group.mean_reward) for group in group_results(results)] == [
        ("a", 3, 1.0),
        ("b", 3, 1.0),
    ]
    assert {result.status for result in results} == {"scored"}
    assert all({"acquire", "agent", "quiesce", "judge"} == set(result.phases_s) for result in results)
    assert all(len(result.sandboxes) == 2 for result in results)


async def test_groups_come_when_they_are_whole() -> None:
    """In the order in which they are completed; one that never is whole is an error, not a smaller group."""

    async def solve(box: Sandbox, task: Task) -> None:
        await asyncio.sleep(10.0 if task.id == "slow" else 1.0)

    async with _pool(FakeBackend()) as pool:
        run = rollouts(_tasks("slow", "quick"), solve, pool, per_task=3, judge=ScriptedJudge())
        assert [(group.task, len(group.results)) async for group in whole_groups(run, 3)] == [("quick", 3), ("slow", 3)]
        run = rollouts(_tasks("a"), solve, pool, per_task=3, judge=ScriptedJudge())
        with pytest.raises(BadRequest, match="did not become whole"):
            [group async for group in whole_groups(run, 4)]


async def test_what_is_finished_is_not_run_again() -> None:
    """Only the rest is."""
    async with _pool(FakeBackend()) as pool:
        done = [result for result in await _all(pool, _tasks("a", "b"), _agent(), per_task=2) if result.task == "a"]
        rest = await _all(pool, _tasks("a", "b"), _agent(), per_task=2, finished=done)
    assert sorted(result.key for result in rest) == [("b", 0), ("b", 1)]


async def test_agent_out_of_time_is_judged() -> None:
    """What it left counts; the row's own limit wins over the run's."""
    async with _pool(FakeBackend()) as pool:
        (result,) = await _all(pool, _tasks("a", agent_limit_s=10.0), _agent(1000.0))
    assert (result.status, result.agent and result.agent.end) == ("scored", "timed_out")
    assert result.phases_s["agent"] < 20


async def test_agent_that_raises_is_a_typed_failure_and_not_tried_again() -> None:
    """Its error is the caller's own; no reward is made of it."""
    async with _pool(FakeBackend()) as pool:
        (result,) = await _all(pool, _tasks("a"), _agent(error=ValueError("mine")))
    assert (result.status, result.reward, len(result.attempts)) == ("failed", None, 1)
    assert result.failure is not None
    assert (result.failure.phase, result.failure.kind, result.failure.retriable) == ("agent", "agent_error", False)
    assert "mine" in result.failure.message


async def test_retriable_failures_are_tried_again_up_to_the_limit() -> None:
    """Each try has a lease of its own, and all are told."""
    async with _pool(FakeBackend()) as pool:
        (result,) = await _all(pool, _tasks("a"), _agent(error=TransportLost("cut")), settings=RolloutSettings(tries=3))
    assert [(attempt.phase, attempt.kind) for attempt in result.attempts] == [("agent", "transport")] * 3
    assert len(result.sandboxes) == 3
    assert result.status == "failed"


async def test_failed_judge_is_tried_again_without_the_agent() -> None:
    """The agent's work is kept."""
    judge = ScriptedJudge(failures=[TransportLost("cut"), Capacity("full")])
    runs = 0

    async def solve(box: Sandbox, task: Task) -> None:
        nonlocal runs
        runs += 1

    async with _pool(FakeBackend()) as pool:
        (result,) = await _all(pool, _tasks("a"), solve, judge=judge)
    assert (runs, result.status, result.reward) == (1, "scored", 1.0)
    assert [(attempt.phase, attempt.kind) for attempt in result.attempts] == [("judge", "transport"), ("judge", "capacity")]


async def test_slow_phase_is_a_typed_failure_of_that_phase() -> None:
    """Its own limit ends it; the others are not charged."""
    settings = RolloutSettings(tries=1, limits=PhaseLimits(judge_s=5.0))
    async with _pool(FakeBackend()) as pool:
        tasks = _tasks("a", test_limit_s=10.0)
        (result,) = await _all(pool, tasks, _agent(100.0), judge=ScriptedJudge(1000.0), settings=settings)
    assert result.failure is not None
    assert (result.failure.phase, result.failure.kind, result.failure.retriable) == ("judge", "phase_limit", True)


async def test_sandbox_that_cannot_be_had_is_a_failure_of_acquire() -> None:
    """Never a reward of zero."""

    async def refuse(point: Point, name: str) -> None:
        if point == "create.before":
            raise Capacity("no room")

    async with _pool(FakeBackend(interfere=refuse)) as pool:
        (result,) = await _all(pool, _tasks("a"), _agent(), settings=RolloutSettings(tries=2))
    assert [(attempt.phase, attempt.kind) for attempt in result.attempts] == [("acquire", "capacity")] * 2
    assert (result.status, result.reward) == ("failed", None)


async def test_at_most_so_many_agents_and_judges_work_at_once() -> None:
    """Two budgets, neither eats the other."""
    working = most = 0

    async def solve(box: Sandbox, task: Task) -> None:
        nonlocal working, most
        working += 1
        most = max(most, working)
        await asyncio.sleep(1.0)
        working -= 1

    judge = ScriptedJudge(3.0)
    async with _pool(FakeBackend()) as pool:
        settings = RolloutSettings(concurrency=3, judges=2)
        results = await _all(pool, _tasks("a", "b"), solve, judge=judge, settings=settings, per_task=6)
    assert (len(results), most, judge.most) == (12, 3, 2)


async def test_judge_never_waits_behind_acquires() -> None:
    """With sandboxes short and many agents waiting for one, a judge's request is served before any that had not begun."""
    settings = RolloutSettings(concurrency=20, judges=20, acquiring=1)
    async with _pool(FakeBackend(), sandboxes=2) as pool:
        results = await _all(pool, _tasks("a"), _agent(10.0), judge=ScriptedJudge(10.0), settings=settings, per_task=20)
    # An agent holds a sandbox 10 s, a judge 10 s: behind 18 agents a judge would wait 90 s.
    assert max(result.phases_s["judge"] for result in results) <= 35
    assert {result.status for result in results} == {"scored"}


async def test_judging_in_place_uses_the_agents_sandbox() -> None:
    """One sandbox a rollout, and the verdict says where it was made."""
    async with _pool(FakeBackend()) as pool:
        (result,) = await _all(pool, _tasks("a"), _agent(), settings=RolloutSettings(where="in_place"))
    assert result.verdict is not None
    assert (result.verdict.where, len(result.sandboxes)) == ("in_place", 1)


async def test_leaving_the_loop_stops_what_runs() -> None:
    """At once, and every sandbox is given back."""
    backend = FakeBackend()
    async with _pool(backend) as pool:
        async with aclosing(rollouts(_tasks("a", "b"), _agent(1.0), pool, per_task=50, judge=ScriptedJudge())) as results:
            async for _ in results:
                break
        assert [task.get_name() for task in asyncio.all_tasks() if task.get_name().startswith("rollout")] == []


@pytest.mark.parametrize("moment_s", [0.0, 0.5, 1.5, 2.5, 3.0])
async def test_cancelling_at_any_moment_leaves_nothing(moment_s: float) -> None:
    """Whatever phase it was in; `_pool` counts what is left."""
    async with _pool(FakeBackend()) as pool:
        run = asyncio.create_task(_all(pool, _tasks("a", "b"), _agent(1.0), per_task=20))
        await asyncio.sleep(moment_s)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run


async def test_failure_of_one_rollout_does_not_touch_the_others() -> None:
    """Only the task whose agent fails is lost."""

    async def solve(box: Sandbox, task: Task) -> None:
        if task.id == "bad":
            raise RuntimeError("mine")

    async with _pool(FakeBackend()) as pool:
        results = await _all(pool, _tasks("good", "bad"), solve, per_task=3)
    assert {(result.task, result.status) for result in results} == {("good", "scored"), ("bad", "failed")}


async def test_events_tell_each_phase() -> None:
    """What reports and progress read: begun, each phase and its end, ended."""
    async with _pool(FakeBackend()) as pool:
        await _all(pool, _tasks("a"), _agent())
        told = [(event.kind, event.data.get("phase")) for event in pool.provider.events if event.kind.startswith("rollout.")]
    told.remove(("rollout.quiesced", None))
    phases = [
        (kind, phase) for phase in ("acquire", "agent", "quiesce", "judge") for kind in ("rollout.phase", "rollout.phase_done")
    ]
    assert told == [("rollout.started", None), *phases, ("rollout.ended", None)]


@pytest.mark.parametrize(("tasks", "per_task"), [(["a", "a"], 1), (["a"], 0)])
async def test_calls_that_cannot_work_are_refused(tasks: list[str], per_task: int) -> None:
    """Before anything is started."""
    async with _pool(FakeBackend()) as pool:
        with pytest.raises(BadRequest):
            await _all(pool, _tasks(*tasks), _agent(), per_task=per_task)
