"""The four phases of a rollout, each with its own clock; and who may go first when sandboxes are short."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sandlot.errors import BadRequest, SandlotError
from sandlot.events import EventLog, Scalar
from sandlot.rollout.results import Phase


class PhaseLimit(SandlotError):
    """A phase took longer than its own limit. Retriable: the agent's phase never ends this way (it is judged instead)."""

    retriable = True
    kind = "phase_limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseLimits:
    """Seconds for each phase. Each begins when its phase does, so none is charged for another's waiting."""

    acquire_s: float = 900.0
    """Waiting for the pool included: an image may have to be fetched and unpacked first."""
    agent_s: float = 3_600.0
    """Where the task's row gives no limit of its own."""
    quiesce_s: float = 120.0
    """Ending what the agent left, and taking over its change."""
    judge_s: float = 900.0
    """Clean sandboxes and what is put into them; the runs of the tests have the task's own limit on top, each."""

    def __post_init__(self) -> None:
        if min(self.acquire_s, self.agent_s, self.quiesce_s, self.judge_s) <= 0:
            raise BadRequest("phase limits must be positive seconds")


@dataclass(slots=True)
class Clocks:
    """Times the phases of one rollout and says each in the event log."""

    events: EventLog
    task: str
    sample: int
    seconds: dict[str, float] = field(default_factory=dict)
    phase: Phase = "acquire"

    @asynccontextmanager
    async def run(self, phase: Phase, limit_s: float) -> AsyncIterator[None]:
        """One phase.

        Raises:
            PhaseLimit: it took longer than `limit_s`; the block was cancelled.
        """
        loop = asyncio.get_running_loop()
        self.phase, began = phase, loop.time()
        self.say("rollout.phase", phase=phase)
        timer = asyncio.timeout(limit_s)
        try:
            async with timer:
                yield
        except TimeoutError as error:
            if not timer.expired():
                raise
            raise PhaseLimit(f"{phase} took longer than {limit_s:g} s") from error
        finally:
            self.seconds[phase] = loop.time() - began
            self.say("rollout.phase_done", phase=phase, seconds=round(self.seconds[phase], 6))

    def say(self, kind: str, sandbox: str = "", **data: Scalar) -> None:
        """Append one event about this rollout."""
        self.events.append(kind, sandbox, {"task": self.task, "sample": self.sample, **data})


class Desk:
    """Hands out turns so that a judge never waits behind an acquire.

    Judges and agents have budgets of their own. Beyond that, at most `acquiring` leases for agents are under way at once, and
    none begins while a judge waits for its sandbox: what is ahead of a judge in the pool's queue is bounded and never grows.
    """

    def __init__(self, *, agents: int, judges: int, acquiring: int) -> None:
        if min(agents, judges, acquiring) < 1:
            raise BadRequest("concurrency must be at least 1")
        self.agents = asyncio.Semaphore(agents)
        self.judges = asyncio.Semaphore(judges)
        self.backlog = asyncio.Semaphore(2 * judges)
        """Changes that are judged or wait for it: each may hold data."""
        self._acquiring = asyncio.Semaphore(acquiring)
        self._judges_waiting = 0
        self._free = asyncio.Event()
        self._free.set()

    @asynccontextmanager
    async def acquire_turn(self) -> AsyncIterator[None]:
        """For an agent's lease: waits while a judge is waiting for one."""
        async with self._acquiring:
            await self._free.wait()
            yield

    @asynccontextmanager
    async def judge_turn(self) -> AsyncIterator[None]:
        """For a judge's lease."""
        self._judges_waiting += 1
        self._free.clear()
        try:
            yield
        finally:
            self._judges_waiting -= 1
            if self._judges_waiting == 0:
                self._free.set()
