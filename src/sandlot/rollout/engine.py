"""Runs rollouts: workers take them in order, agents and judges have separate budgets, results come out as they finish.

One rollout: acquire -> agent -> quiesce -> (sandbox released) -> judge. A failure that is retriable is tried again: before
the judge with a fresh sandbox, in the judge with the agent's work kept. What still fails ends as a typed failure that names
every try.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from sandlot.errors import BadRequest
from sandlot.pool import Pool
from sandlot.rollout.agents import Agent, AgentFunction, Assignment, agent_of
from sandlot.rollout.judging import RUNS_AT_MOST, Judge, Judging, Where
from sandlot.rollout.phases import Clocks, Desk, PhaseLimit, PhaseLimits
from sandlot.rollout.recording import CallRecorder, ContentStore
from sandlot.rollout.results import AgentReport, Attempt, RolloutResult, failed_attempt, unfinished
from sandlot.sandbox import Sandbox
from sandlot.spec import Spec
from sandlot.tasks.change import Change
from sandlot.tasks.task import Task
from sandlot.tasks.verdict import Verdict

AGENT_GRACE_S: Final = 5.0
"""On top of an agent's limit before it is cancelled: a command's own time-out comes first and keeps what it printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutSettings:
    """How rollouts are run."""

    concurrency: int = 8
    """Rollouts between acquire and quiesce at once: as many sandboxes."""
    judges: int | None = None
    """Judges at once, on top. None: as `concurrency`."""
    acquiring: int = 16
    """Leases for agents under way at once; more would only queue in front of a judge."""
    tries: int = 3
    """For everything before the judge, and again for the judge."""
    limits: PhaseLimits = field(default_factory=PhaseLimits)
    where: Where = "twin"
    """Where the judge works; `in_place` is weaker (docs/judging.md)."""


@dataclass(slots=True)
class _Rollout:
    """One rollout under way."""

    task: Task
    sample: int
    clocks: Clocks
    started_s: float
    began: float
    attempts: list[Attempt] = field(default_factory=list)
    sandboxes: list[str] = field(default_factory=list)
    recorders: list[CallRecorder] = field(default_factory=list)
    report: AgentReport | None = None
    change: Change | None = None
    verdict: Verdict | None = None


async def rollouts(
    tasks: Sequence[Task],
    agent: Agent | AgentFunction | str,
    pool: Pool,
    *,
    per_task: int = 1,
    settings: RolloutSettings | None = None,
    finished: Iterable[RolloutResult] = (),
    judge: Judging | None = None,
    contents: ContentStore | None = None,
) -> AsyncGenerator[RolloutResult, None]:
    """Run every task `per_task` times and yield each result as it finishes.

    Leave the loop early only inside `contextlib.aclosing`, so that what is running is stopped at once.

    Args:
        agent: gold, half, none, a command, `module:function`, a coroutine function of (sandbox, task), or an `Agent`.
        finished: results of an earlier run of the same; those rollouts are not run again.
        judge: who turns changes into verdicts; None: `Judge`. Its sandboxes come from the same pool.
        contents: keeps what calls carried, as files; None: their digests only. Calls are events of the provider's log.

    Raises:
        BadRequest: no agent, no task, or two tasks with one id (the caller's fault). A rollout's own failure is in its result.
    """
    if per_task < 1:
        raise BadRequest(f"per_task must be at least 1, got {per_task}")
    ids = [task.id for task in tasks]
    if len(set(ids)) < len(ids):
        raise BadRequest("two tasks have the same id")
    engine = Engine(agent_of(agent), pool, settings or RolloutSettings(), judge=judge, contents=contents)
    by_id = {task.id: task for task in tasks}
    todo = [(by_id[task], sample) for task, sample in unfinished(ids, per_task, finished)]
    pool.expect(task.spec for task, _ in todo for _ in range(2))  # for its agent, and for its judge
    async with aclosing(engine.run(todo)) as results:
        async for result in results:
            yield result


class Engine:
    """The machinery of `rollouts`, for one run."""

    def __init__(
        self, agent: Agent, pool: Pool, settings: RolloutSettings, *, judge: Judging | None, contents: ContentStore | None
    ) -> None:
        self._agent = agent
        self._pool = pool
        self._settings = settings
        self._contents = contents
        judges = settings.judges if settings.judges is not None else settings.concurrency
        self._desk = Desk(agents=settings.concurrency, judges=judges, acquiring=settings.acquiring)
        self._judge = judge if judge is not None else Judge()

    async def run(self, todo: Iterable[tuple[Task, int]]) -> AsyncGenerator[RolloutResult, None]:
        """Results as they finish. Closing the iterator stops what runs and gives every sandbox back."""
        results: asyncio.Queue[RolloutResult | None] = asyncio.Queue()
        supervisor = asyncio.create_task(self._supervise(deque(todo), results), name="rollouts")
        try:
            while (result := await results.get()) is not None:
                yield result
            await supervisor
        finally:
            supervisor.cancel()
            await asyncio.wait([supervisor])

    async def _supervise(self, todo: deque[tuple[Task, int]], results: asyncio.Queue[RolloutResult | None]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                while todo:
                    await self._desk.agents.acquire()
                    task, sample = todo.popleft()
                    group.create_task(self._run(task, sample, results), name=f"rollout {task.id} {sample}")
        finally:
            results.put_nowait(None)

    # --- one rollout -------------------------------------------------------------------------------------------------
    async def _run(self, task: Task, sample: int, results: asyncio.Queue[RolloutResult | None]) -> None:
        clocks = Clocks(self._pool.provider.events, task.id, sample)
        rollout = _Rollout(task, sample, clocks, time.time(), asyncio.get_running_loop().time())
        clocks.say("rollout.started")
        try:
            await self._until_done(rollout)
            await self._desk.backlog.acquire()  # an agent's place is kept while judges are far behind
        finally:
            self._desk.agents.release()
        try:
            if rollout.change is not None:
                await self._until_judged(rollout, rollout.change)
        finally:
            self._desk.backlog.release()
            if rollout.change is not None:
                rollout.change.close()
        result = self._result(rollout)
        clocks.say("rollout.ended", status=result.status, reward=result.reward, seconds=round(result.seconds, 6))
        results.put_nowait(result)

    async def _until_done(self, rollout: _Rollout) -> None:
        for left in reversed(range(self._settings.tries)):
            began = asyncio.get_running_loop().time()
            try:
                await self._work(rollout)
                return
            except Exception as error:  # noqa: BLE001 - the edge of one rollout: whatever it is ends in its result, typed
                if not self._again(rollout, error, began, left):
                    return

    async def _until_judged(self, rollout: _Rollout, change: Change) -> None:
        def lease(spec: Spec) -> AbstractAsyncContextManager[Sandbox]:
            return self._lease_for_judge(rollout, spec)

        async with self._desk.judges:
            for left in reversed(range(self._settings.tries)):
                began = asyncio.get_running_loop().time()
                try:
                    async with rollout.clocks.run("judge", self._judge_limit_s(rollout.task)):
                        rollout.verdict = await self._judge.judge(rollout.task, change, lease)
                    return
                except Exception as error:  # noqa: BLE001 - as above
                    if not self._again(rollout, error, began, left):
                        return

    def _again(self, rollout: _Rollout, error: Exception, began: float, left: int) -> bool:
        """Note a failed try; whether to try once more."""
        seconds = asyncio.get_running_loop().time() - began
        sandbox = rollout.sandboxes[-1] if rollout.sandboxes else ""
        attempt = failed_attempt(error, phase=rollout.clocks.phase, seconds=seconds, sandbox=sandbox)
        rollout.attempts.append(attempt)
        rollout.clocks.say(
            "rollout.attempt_failed",
            phase=attempt.phase,
            error=attempt.kind,
            message=attempt.message,
            retriable=attempt.retriable,
        )
        return attempt.retriable and left > 0

    async def _work(self, rollout: _Rollout) -> None:
        """Acquire, agent and quiesce, in one sandbox, which is given back at the end."""
        task, limits, clocks = rollout.task, self._settings.limits, rollout.clocks
        async with AsyncExitStack() as stack:
            async with clocks.run("acquire", limits.acquire_s), self._desk.acquire_turn():
                box = await stack.enter_async_context(self._pool.lease(task.spec))
            self._record(rollout, box)
            rollout.report = await self._solve(box, rollout)
            async with clocks.run("quiesce", limits.quiesce_s):
                left = await box.quiesce()
                clocks.say("rollout.quiesced", box.name, processes=len(left))
                if self._settings.where == "twin":
                    rollout.change = await self._judge.take(box, task)
            if self._settings.where == "in_place":
                async with self._desk.judges, clocks.run("judge", self._judge_limit_s(task)):
                    rollout.verdict = await self._judge.judge_in_place(box, task)

    async def _solve(self, box: Sandbox, rollout: _Rollout) -> AgentReport:
        """The agent's phase. Out of time is an ending like any other: what it left is judged."""
        task, limits = rollout.task, self._settings.limits
        limit_s = task.agent_limit_s if task.agent_limit_s is not None else limits.agent_s
        try:
            async with rollout.clocks.run("agent", limit_s + AGENT_GRACE_S):
                return await self._agent.solve(box, Assignment(task, rollout.sample, limit_s))
        except PhaseLimit:
            return AgentReport("timed_out", None, limit_s)

    def _judge_limit_s(self, task: Task) -> float:
        return self._settings.limits.judge_s + RUNS_AT_MOST * task.test_limit_s

    @asynccontextmanager
    async def _lease_for_judge(self, rollout: _Rollout, spec: Spec) -> AsyncIterator[Sandbox]:
        async with AsyncExitStack() as stack:
            async with self._desk.judge_turn():
                box = await stack.enter_async_context(self._pool.lease(spec))
            self._record(rollout, box)
            yield box

    def _record(self, rollout: _Rollout, box: Sandbox) -> None:
        rollout.sandboxes.append(box.name)
        box.recorder = recorder = CallRecorder(rollout.clocks, box.name, self._contents)
        rollout.recorders.append(recorder)

    def _result(self, rollout: _Rollout) -> RolloutResult:
        verdict = rollout.verdict
        return RolloutResult(
            task=rollout.task.id,
            sample=rollout.sample,
            status="scored" if verdict is not None else "failed",
            reward=verdict.reward if verdict is not None else None,
            verdict=verdict,
            agent=rollout.report,
            attempts=tuple(rollout.attempts),
            phases_s={phase: round(seconds, 6) for phase, seconds in rollout.clocks.seconds.items()},
            sandboxes=tuple(rollout.sandboxes),
            started_s=rollout.started_s,
            calls=sum(recorder.calls for recorder in rollout.recorders),
            seconds=round(asyncio.get_running_loop().time() - rollout.began, 6),
        )
