"""Where the events of a call go: each is the `owner` of one call and wakes whoever waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from sandlot.errors import SandlotError
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.protocol.calls import Call
from sandlot.protocol.fields import STDOUT


class Sink:
    """Waits for the end of a call; what arrives before it is not kept."""

    __slots__ = ("call", "future")
    call: Call

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[Any] = loop.create_future()

    def arrived(self, message: Any) -> tuple[int, int] | None:
        """Take a part of the answer. Returns stream and offset up to which it is consumed, or None when that is told later."""
        return None

    def ended(self, outcome: r.Message | SandlotError) -> None:
        if self.future.done():
            return  # its waiter was cancelled in this very turn of the loop
        if isinstance(outcome, SandlotError):
            self.future.set_exception(outcome)
            self.future.exception()  # whoever waits gets it; where nobody does, nothing is to be logged
        else:
            self.future.set_result(outcome)

    def restarted(self) -> None:
        """What arrived is void: the call begins again."""

    def rewound(self) -> None:
        """What was not consumed comes again."""

    def writable(self) -> None:
        """More may be sent."""


class Source(Sink):
    """For calls that also send: tells the sender when it may go on, and when it must begin again."""

    __slots__ = ("_loop", "_waiters", "again")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._loop = loop
        self._waiters: list[asyncio.Future[None]] = []
        self.again = False
        """The call began again: whoever sends or reads starts over. The one who does clears it."""

    def ended(self, outcome: r.Message | SandlotError) -> None:
        super().ended(outcome)
        self.writable()

    def restarted(self) -> None:
        self.again = True
        self.writable()

    def writable(self) -> None:
        """Wake whoever waits for a change."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def changed(self) -> None:
        """Until something arrives, is acknowledged, begins again or ends."""
        waiter = self._loop.create_future()
        self._waiters.append(waiter)
        await waiter


class Output(Source):
    """Collects the output chunks of a command; bounded by the command's caps, which the session enforces."""

    __slots__ = ("err", "out")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.out: list[bytes] = []
        self.err: list[bytes] = []

    def arrived(self, message: Any) -> tuple[int, int] | None:
        if not isinstance(message, a.Out):
            return None
        (self.out if message.s == STDOUT else self.err).append(message.d)
        return message.s, message.off + len(message.d)


class Pages(Sink):
    """Collects the entries of a listing; bounded by the listing's limit, which the session enforces."""

    __slots__ = ("entries",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.entries: list[a.Listed] = []

    def arrived(self, message: Any) -> tuple[int, int] | None:
        self.entries.extend(message.entries)
        return None

    def restarted(self) -> None:
        self.entries.clear()


class Contents(Sink):
    """Collects the data of one file; bounded by the read's limit, which the session enforces."""

    __slots__ = ("parts",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.parts: list[bytes] = []

    def arrived(self, message: Any) -> tuple[int, int] | None:
        self.parts.append(message.d)
        return message.s, message.off + len(message.d)

    def restarted(self) -> None:
        self.parts.clear()


class Brake:
    """Stops the reading of a socket while some feed holds more than it should; parts without data know no window."""

    __slots__ = ("_holding", "_pause", "_resume")

    def __init__(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        self._pause, self._resume = pause, resume
        self._holding: set[Feed] = set()

    @property
    def on(self) -> bool:
        return bool(self._holding)

    def hold(self, feed: Feed) -> None:
        self._holding.add(feed)
        self._pause()

    def free(self, feed: Feed) -> None:
        if feed in self._holding:
            self._holding.remove(feed)
            if not self._holding:
                self._resume()


class Feed(Source):
    """Hands parts on as the reader asks for them. At most a window a stream and `MOST_PARTS` parts wait here."""

    __slots__ = ("_brake", "_parts")
    MOST_PARTS: Final = 4_096

    def __init__(self, loop: asyncio.AbstractEventLoop, brake: Brake | None = None) -> None:
        super().__init__(loop)
        self._brake = brake or Brake(lambda: None, lambda: None)
        self._parts: deque[Any] = deque()

    def arrived(self, message: Any) -> tuple[int, int] | None:
        self._parts.append(message)
        if len(self._parts) > self.MOST_PARTS:
            self._brake.hold(self)
        self.writable()
        return None

    def ended(self, outcome: r.Message | SandlotError) -> None:
        self._brake.free(self)
        super().ended(outcome)

    def restarted(self) -> None:
        self._parts.clear()
        self._brake.free(self)
        super().restarted()

    def rewound(self) -> None:
        self._parts.clear()
        self._brake.free(self)

    async def next(self) -> Any:
        """The next part, or None at the end of the call or when it began `again`."""
        await self._some()
        if self.again or not self._parts:
            return None
        part = self._parts.popleft()
        if not self._parts:
            self._brake.free(self)
        return part

    async def next_batch(self) -> list[Any]:
        """All parts that are there, at least one; none at the end of the call or when it began `again`."""
        await self._some()
        if self.again:
            return []  # what is there already belongs to the new beginning
        parts = list(self._parts)
        self._parts.clear()
        self._brake.free(self)
        return parts

    async def _some(self) -> None:
        while not self._parts and not self.future.done() and not self.again:
            await self.changed()
