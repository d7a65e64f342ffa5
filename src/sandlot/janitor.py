"""Deletions, owned here and by nobody else: they go on whatever happens to the callers that caused them.

Deciding to delete is sync (`discard`), so no cancellation can come between the decision and its record. The work runs in
tasks of the janitor's own, which no caller awaits directly. Cancelling such a task (only the end of an event loop does
that) makes it hurry, not stop.

Two things make deleting harder than calling `delete`. A create that is still under way may make its sandbox after a
delete has found nothing, so the janitor first lets the create end (for a grace, then by cancelling it). And when it had
to be cancelled, or ended without a clear answer, "there was none" is believed only after it has been said for `settle_s`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sandlot.admission import Turnstile
from sandlot.backends.base import Backend
from sandlot.errors import BadRequest, Capacity, SandlotError, Throttled, Unsupported
from sandlot.events import Scalar
from sandlot.interrupts import Begun
from sandlot.journal import Journal
from sandlot.lifecycle import Record, State, Step
from sandlot.pacing import Outcome, Pace
from sandlot.sandbox import Sandbox

T = TypeVar("T")

LOOK_AGAIN_S: Final = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Deletion:
    """How deleting is tried. All in seconds."""

    in_flight: int = 64
    """Calls under way at a time: a budget of their own, so that neither creates wait for deletes nor deletes for creates.
    Waiting for a turn is on none of the clocks below."""
    attempt_s: float = 30.0
    """What one call may take before it counts as failed."""
    first_pause_s: float = 0.05
    """Before the second attempt; doubles each time."""
    longest_pause_s: float = 5.0
    give_up_after_s: float = 120.0
    """After this long from the first attempt deleting is given up, and the name is reported as left."""
    hurry_s: float = 10.0
    """What is left of that once the event loop is ending."""
    create_grace_s: float = 2.0
    """What a create that nobody waits for any more may take to end by itself: one that ended is deleted at once, one that
    was cut off leaves doubt."""
    clear_from: int = 64
    """A provider that closes with at least so many lets its backend delete them in one go, if it can."""
    settle_s: float = 1.0
    """How long "there was none" must be repeated after a create that ended in doubt."""


async def persist(work: Callable[[], Awaitable[T]], *, on_cancel: Callable[[], None] = lambda: None) -> T:
    """Do this work to its end in a task that nobody but an ending event loop cancels, and begin it anew when it does.

    Only for cleaning up, which must be bounded and harmless to begin again: what is not cleaned up now never will be.
    """
    task = asyncio.current_task()
    while True:
        try:
            return await work()
        except asyncio.CancelledError:
            if task is None or not task.cancelling():
                raise  # something inside was cancelled, not we
            task.uncancel()
            on_cancel()


async def wait_ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until all of these have ended, however.

    It looks again every `LOOK_AGAIN_S` seconds: a second Ctrl-C raises inside the event loop, wherever that is just then,
    and the wake-up that it was about to deliver is lost.
    """
    while pending := [task for task in tasks if not task.done()]:
        await asyncio.wait(pending, timeout=LOOK_AGAIN_S)


CERTAIN = (BadRequest, Unsupported, Capacity, Throttled)
"""A create that failed with one of these has been refused: nothing of it is still on its way."""


@dataclass(slots=True, eq=False)
class _Removal:
    """How far one deletion has come; survives a cancellation of its task."""

    record: Record
    making: asyncio.Task[Sandbox] | None
    grace_s: float
    """For the first attempt: whoever has had it once does not get it again."""
    pause_s: float
    give_up_at_s: float = math.inf
    """Set when its turn has come for the first time, or when the event loop is ending."""
    doubt_until_s: float | None = None
    attempts: int = 0


class Janitor:
    """Deletes what it is told to until the backend confirms it, and names what it had to give up."""

    def __init__(self, backend: Backend, journal: Journal, rules: Deletion) -> None:
        self._backend = backend
        self._journal = journal
        self._rules = rules
        self._tasks: dict[Record, asyncio.Task[None]] = {}
        self._turnstile: Turnstile | None = None
        self._clearing: asyncio.Task[None] | None = None

    def discard(self, record: Record, *, why: str, making: asyncio.Task[Sandbox] | None = None, grace_s: float = 0.0) -> None:
        """Decide that this sandbox shall be gone. Returns at once; deciding twice is deciding once.

        `making` is the task that creates it, if there is one: it is let end, or cancelled after a while. `grace_s`:
        seconds that its processes have between TERM and KILL, on top of `attempt_s`.
        """
        if record in self._tasks or record.state is State.GONE:
            return
        record.why = record.why or why
        if self._journal.step(record, Step.DISCARD, {"why": record.why}) is State.GONE:
            if making is not None:
                making.cancel()
            return
        removal = _Removal(record, making, grace_s, self._rules.first_pause_s)
        self._tasks[record] = asyncio.get_running_loop().create_task(Begun(self._remove(removal)), name=f"delete {record.name}")

    def clear(self) -> None:
        """Everything attached shall go: the backend may do that in one go. Deletions that are decided from now on wait for
        the end of it, and confirm.
        """
        self._clearing = asyncio.get_running_loop().create_task(self._clear(), name="delete everything")

    async def wait_gone(self, records: Iterable[Record] | None = None) -> None:
        """Wait until these deletions (None: all, also those that begin meanwhile) have ended, one way or the other.

        Cancelling this wait cancels no deletion.
        """
        wanted = None if records is None else set(records)
        while pending := [task for record, task in self._tasks.items() if wanted is None or record in wanted]:
            await wait_ended(pending)

    @property
    def busy(self) -> int:
        """Deletions under way."""
        return len(self._tasks)

    async def _clear(self) -> None:
        try:
            async with asyncio.timeout(self._rules.give_up_after_s):
                await self._backend.clear()
        except Exception as error:  # noqa: BLE001 - whatever a backend raises, each is deleted by itself, then
            self._journal.events.append("clear.failed", data=_told(error))

    async def _remove(self, removal: _Removal) -> None:
        def hurry() -> None:
            now = asyncio.get_running_loop().time()
            removal.give_up_at_s = min(removal.give_up_at_s, now + self._rules.hurry_s)

        try:
            step = await persist(lambda: self._until_confirmed(removal), on_cancel=hurry)
            self._journal.step(removal.record, step, {"why": removal.record.why, "attempts": removal.attempts})
        finally:
            del self._tasks[removal.record]

    async def _until_confirmed(self, removal: _Removal) -> Step:
        clock = asyncio.get_running_loop().time
        if removal.doubt_until_s is None:
            in_doubt = await self._create_ended_in_doubt(removal.making)
            removal.doubt_until_s = clock() + (self._rules.settle_s if in_doubt else 0.0)
        if self._clearing is not None:
            await asyncio.wait([self._clearing], timeout=_left_s(removal, clock()))
        while True:
            answer = await self._try_delete(removal)
            if answer is True or (answer is False and clock() >= removal.doubt_until_s):
                return Step.CONFIRM
            if clock() >= removal.give_up_at_s:
                return Step.GIVE_UP
            await asyncio.sleep(removal.pause_s)
            removal.pause_s = min(self._rules.longest_pause_s, removal.pause_s * 2)

    async def _create_ended_in_doubt(self, making: asyncio.Task[Sandbox] | None) -> bool:
        if making is None:
            return False
        if not making.done():
            await asyncio.wait([making], timeout=self._rules.create_grace_s)
        if not making.done():
            making.cancel()
            await asyncio.wait([making], timeout=self._rules.create_grace_s)
        if not making.done() or making.cancelled():
            return True
        return making.exception() is not None and not isinstance(making.exception(), CERTAIN)

    async def _try_delete(self, removal: _Removal) -> bool | None:
        """True: it existed and is gone. False: there was none. None: no answer that can be relied on."""
        clock = asyncio.get_running_loop().time
        turnstile = self._open_turnstile()
        try:
            async with asyncio.timeout(_left_s(removal, clock())):
                ticket = await turnstile.enter(removal.record)
        except TimeoutError:
            return None
        outcome = Outcome("other")
        try:
            removal.attempts += 1
            name, grace_s = removal.record.name, removal.grace_s
            removal.give_up_at_s = min(removal.give_up_at_s, clock() + grace_s + self._rules.give_up_after_s)
            removal.grace_s = 0.0
            left_s = max(removal.give_up_at_s - clock(), self._rules.first_pause_s)
            async with asyncio.timeout(min(self._rules.attempt_s + grace_s, left_s)):
                return await self._backend.delete(name, grace_s=grace_s)
        except Exception as error:  # noqa: BLE001 - whatever a backend raises, the sandbox may still be there: try again
            if isinstance(error, Throttled):
                outcome = Outcome("throttled", error.retry_after_s)
            self._journal.events.append("delete.failed", name, {**_told(error), "attempt": removal.attempts})
            return None
        finally:
            turnstile.leave(ticket, outcome)

    def _open_turnstile(self) -> Turnstile:
        if self._turnstile is None:
            self._turnstile = Turnstile(Pace(in_flight=self._rules.in_flight, adaptive=None))
        return self._turnstile


def _left_s(removal: _Removal, now: float) -> float | None:
    return None if removal.give_up_at_s == math.inf else max(0.0, removal.give_up_at_s - now)


def _told(error: Exception) -> dict[str, Scalar]:
    return {"error": error.kind if isinstance(error, SandlotError) else type(error).__name__, "message": str(error)}
