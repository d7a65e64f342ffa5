"""A transport for a wire on a stream that is no socket: two tasks, one a direction, with the flow control of both sides."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final, Protocol

from sandlot.connection.wire import Wire
from sandlot.errors import SandlotError, TransportLost
from sandlot.interrupts import Begun

_PART_BYTES: Final = 32_768  # what the API server forwards in one piece
_FLUSH_S: Final = 1.0  # what was written before closing gets so long to leave


class Channel(Protocol):
    """Bytes both ways, each end awaited."""

    async def receive(self) -> bytes: ...

    async def send(self, data: bytes | memoryview) -> None: ...

    async def hang_up(self) -> None: ...

    def last_words(self) -> str: ...


class Carrier(asyncio.Transport):
    """Carries a wire until either side ends it. The wire hears of the end once, as from any transport."""

    def __init__(self, channel: Channel, wire: Wire, first: bytes = b"") -> None:
        """`first`: what has come already."""
        super().__init__()
        self._channel = channel
        self._wire = wire
        self._outgoing: deque[bytes | bytearray | memoryview] = deque()
        self._waiting_bytes = 0
        self._high, self._low = 65_536, 16_384
        self._closing = False
        self._stuck = False
        self._more = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        wire.connection_made(self)
        self._reader = asyncio.create_task(self._read(first))
        self._writer = asyncio.create_task(self._write())
        self._ending = asyncio.create_task(Begun(self._end()))

    # --- as a transport ---------------------------------------------------------------------------------------------
    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        self._outgoing.append(data)
        self._waiting_bytes += len(data)
        self._more.set()
        if self._waiting_bytes > self._high and not self._wire.full:
            self._wire.pause_writing()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else 65_536
        self._low = low if low is not None else self._high // 4

    def get_write_buffer_size(self) -> int:
        """What the other side does not take; what has only not had its turn yet does not count."""
        return self._waiting_bytes if self._stuck else 0

    def is_reading(self) -> bool:
        return self._may_read.is_set() and not self._closing

    def pause_reading(self) -> None:
        self._may_read.clear()

    def resume_reading(self) -> None:
        self._may_read.set()

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        """What was written still leaves, if that is soon."""
        if not self._closing:
            self._closing = True
            self._more.set()
            self._reader.cancel()
            asyncio.get_running_loop().call_later(_FLUSH_S, self._writer.cancel)

    def abort(self) -> None:
        self._closing = True
        self._reader.cancel()
        self._writer.cancel()

    # --- the two directions, and their end ----------------------------------------------------------------------------
    async def _read(self, first: bytes) -> None:
        data = first
        while True:
            await self._may_read.wait()
            if not data:
                data = await self._channel.receive()
            if not data:
                return
            rest = memoryview(data)
            while rest and not self._closing:
                room = self._wire.get_buffer(-1)
                count = min(len(room), len(rest))
                room[:count] = rest[:count]
                self._wire.buffer_updated(count)
                rest = rest[count:]
            data = b""

    async def _write(self) -> None:
        while True:
            while self._outgoing:
                data = self._outgoing.popleft()
                await self._send(memoryview(data))
            if self._closing:
                return
            self._more.clear()
            await self._more.wait()

    async def _send(self, data: memoryview) -> None:
        while data:
            part, data = data[:_PART_BYTES], data[_PART_BYTES:]
            self._stuck = True
            await self._channel.send(part)
            self._stuck = False
            self._waiting_bytes -= len(part)
            if self._wire.full and self._waiting_bytes <= self._low:
                self._wire.resume_writing()

    async def _end(self) -> None:
        """When one direction has ended, so has the other; then the channel, and then the wire hears of it, in any case:
        somebody may wait for that, though all tasks are cancelled.
        """
        cause: Exception | None = None
        try:
            cause = await self._both_ended()
        finally:
            self._closing = True
            self._reader.cancel()
            self._writer.cancel()
            try:
                await self._channel.hang_up()
            finally:
                self._wire.connection_lost(cause)

    async def _both_ended(self) -> Exception | None:
        """Why, if nobody asked for it."""
        await asyncio.wait([self._reader, self._writer], return_when=asyncio.FIRST_COMPLETED)
        asked, self._closing = self._closing, True
        if not asked:
            self._reader.cancel()
            self._writer.cancel()
        await asyncio.wait([self._reader, self._writer])  # after `close` what was written leaves
        cause = self._failure(self._reader) or self._failure(self._writer)
        if cause is None and not asked and (words := self._channel.last_words()):
            cause = TransportLost(f"the bridge into the pod has ended{words}")
        return cause

    @staticmethod
    def _failure(task: asyncio.Task[None]) -> Exception | None:
        error = None if task.cancelled() else task.exception()
        if error is None or isinstance(error, SandlotError):
            return error
        if not isinstance(error, OSError):  # no fault of the stream's
            task.get_loop().call_exception_handler({"message": "a carried wire failed", "exception": error, "task": task})
        return TransportLost(f"the bridge into the pod broke: {error}")
