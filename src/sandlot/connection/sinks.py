"""Where the events of a call go: each is the `owner` of one call and wakes whoever waits for it."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

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
        else:
            self.future.set_result(outcome)

    def restarted(self) -> None:
        """What arrived is void: the call begins again."""

    def writable(self) -> None:
        """More may be sent."""


class Output(Sink):
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


class Feed(Source):
    """Hands parts on one by one as the reader asks for them; at most a window a stream waits here."""

    __slots__ = ("_parts",)

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._parts: deque[Any] = deque()

    def arrived(self, message: Any) -> tuple[int, int] | None:
        self._parts.append(message)
        self.writable()
        return None

    def restarted(self) -> None:
        self._parts.clear()
        super().restarted()

    async def next(self) -> Any:
        """The next part, or None at the end of the call or when it began `again`."""
        while not self._parts:
            if self.future.done() or self.again:
                return None
            await self.changed()
        return self._parts.popleft()
