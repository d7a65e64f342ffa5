"""One attempt at one sandbox: wait for the pace, create, hear the first command succeed.

It runs in a task of its own and its caller only waits for it, so a caller that is cancelled or times out just stops
waiting, and in that same step gives the sandbox up: the janitor lets the create end and deletes what it made.
"""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sandlot.admission import Turnstile
from sandlot.backends.base import Grant, Part
from sandlot.custody import Custody
from sandlot.errors import (
    BadRequest,
    Closed,
    ImageInvalid,
    ImageNotFound,
    Infrastructure,
    NotReady,
    SandboxFileExists,
    SandboxGone,
    Throttled,
)
from sandlot.events import Scalar
from sandlot.lifecycle import Record, Step
from sandlot.pacing import Outcome
from sandlot.readiness import first_command
from sandlot.sandbox import Sandbox

SAMPLES: Final = 2048  # durations kept of each clock: enough for a p99, 16 KiB


def _samples() -> deque[float]:
    return deque(maxlen=SAMPLES)


@dataclass(slots=True, eq=False)
class Timing:
    """What making one sandbox spent its time on, in seconds."""

    queue_s: float = 0.0
    create_s: float = 0.0
    parts: Mapping[Part, float] = field(default_factory=dict)
    first_command_s: float = 0.0

    def told(self) -> dict[str, Scalar]:
        """As the events of its steps tell it, so far as it has come."""
        parts: dict[str, Scalar] = {f"{part}_s": span_s for part, span_s in self.parts.items()}
        return {"queue_s": self.queue_s, "create_s": self.create_s, **parts, "first_command_s": self.first_command_s}


@dataclass(slots=True, eq=False)
class Clocks:
    """The separate clocks of making a sandbox, in seconds: nothing is charged to the wrong one."""

    queue: deque[float] = field(default_factory=_samples)
    create: deque[float] = field(default_factory=_samples)
    parts: defaultdict[Part, deque[float]] = field(default_factory=lambda: defaultdict(_samples))
    first_command: deque[float] = field(default_factory=_samples)
    failures: Counter[str] = field(default_factory=Counter)

    def usable(self, timing: Timing) -> None:
        """One more sandbox has answered."""
        self.queue.append(timing.queue_s)
        self.create.append(timing.create_s)
        for part, span_s in timing.parts.items():
            self.parts[part].append(span_s)
        self.first_command.append(timing.first_command_s)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long the two parts of making one sandbox may take, in seconds."""

    create_s: float
    ready_s: float


@dataclass(slots=True, eq=False)
class Maker:
    """Makes sandboxes into its provider's custody."""

    custody: Custody
    turnstile: Turnstile
    clocks: Clocks

    async def attempt(self, record: Record, grant: Grant, limits: Limits) -> Sandbox:
        """Try once. However this ends other than by returning, the sandbox has been given up."""
        task = asyncio.create_task(self._make(record, grant, limits), name=f"create {record.name}")
        self.custody.making[record] = task
        try:
            await asyncio.wait([task])
            if task.cancelled() or (record.doomed and self.turnstile.closed):
                raise Closed("the provider was closed while this sandbox was being created")
            sandbox = task.result()
            if record.doomed:
                raise SandboxGone(f"{record.name} ended while it was being created: {record.why}", why=record.why)
            return sandbox
        except BaseException as error:
            self.custody.discard(record, why="cancelled" if isinstance(error, asyncio.CancelledError) else "create_failed")
            raise
        finally:
            del self.custody.making[record]

    async def _make(self, record: Record, grant: Grant, limits: Limits) -> Sandbox:
        timing, lap = Timing(), _Stopwatch()
        ticket = await self.turnstile.enter(record.spec.image)
        outcome = Outcome("other")
        try:
            timing.queue_s = lap()
            self.custody.journal.step(record, Step.ASK, {"queue_s": timing.queue_s})
            sandbox, timing.parts = await self._open(record, grant, limits.create_s)
            timing.create_s = lap()
            if record.doomed:  # nobody waits for it any more: the janitor deletes it as soon as this returns
                return sandbox
            self.custody.journal.step(record, Step.OPEN, {"create_s": timing.create_s})
            await first_command(sandbox, limits.ready_s)
            timing.first_command_s = lap()
            outcome = Outcome("served", aside_s=timing.parts.get("pull", 0.0), queued_s=timing.parts.get("schedule", 0.0))
            if not record.doomed:
                self.clocks.usable(timing)
                self.custody.journal.step(record, Step.ANSWER, timing.told())
            return sandbox
        except Throttled as error:
            outcome = Outcome("throttled", error.retry_after_s)
            raise
        except Infrastructure:
            outcome = Outcome("failed")
            raise
        except (ImageNotFound, ImageInvalid):
            outcome = Outcome("broken")
            raise
        finally:
            if self.turnstile.leave(ticket, outcome):
                slowed = {"limit": self.turnstile.statistics().limit, "why": outcome.kind}
                self.custody.journal.events.append("gate.slowed", data=slowed)

    async def _open(self, record: Record, grant: Grant, timeout_s: float) -> tuple[Sandbox, Mapping[Part, float]]:
        custody = self.custody
        try:
            async with asyncio.timeout(timeout_s):
                opened = await custody.backend.create(record.name, record.spec, grant)
        except SandboxFileExists as error:
            if not record.doomed:
                custody.journal.step(record, Step.REFUSE)  # someone else's: it must not be deleted by us
            raise BadRequest(f"there is a sandbox named {record.name} already") from error
        except TimeoutError as error:
            raise NotReady(f"{record.name} was not created within {timeout_s:g} s") from error
        sandbox = custody.handle(record.name, opened.connection, record.owner)
        if record.doomed:
            sandbox.abort(Closed("nobody waits for this sandbox any more"))
        else:
            custody.live[record] = sandbox
        return sandbox, opened.spans


class _Stopwatch:
    """Each call returns the seconds since the one before it."""

    def __init__(self) -> None:
        self._now = asyncio.get_running_loop().time
        self._since_s = self._now()

    def __call__(self) -> float:
        since_s, self._since_s = self._since_s, self._now()
        return self._since_s - since_s
