"""One open socket: bytes in to a listener, bytes out, and when it ends. Nothing of the contract is known here."""

from __future__ import annotations

import asyncio
import socket
from typing import Protocol, Self, cast

from sandlot.limits import MAX_CHUNK_BYTES


class Listener(Protocol):
    """Who uses the socket now. All of it is called in the loop's own turn."""

    def room(self) -> memoryview:
        """Where to put what comes."""

    def received(self, count: int) -> None:
        """So many bytes were put there."""

    def writable(self) -> None:
        """The socket takes bytes again."""

    def lost(self, wire: Wire, cause: Exception | None) -> None:
        """The socket is closed; `cause` is None when it was in order."""


class Wire(asyncio.BufferedProtocol):
    """A connected stream socket. `listener` may be exchanged for another while it is open."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener
        self.full = False
        """More is waiting to be sent than should be: senders of data hold back."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None

    async def own(self, sock: socket.socket) -> Self:
        """Take a connected socket, from now on this wire's to close."""
        sock.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=sock)
        return self

    @property
    def ready(self) -> bool:
        """More may be sent: it is open, and what was sent has mostly left."""
        return self._transport is not None and not self.full and not self._transport.is_closing()

    def send(self, data: bytes) -> None:
        """What is sent on a socket that is closing is dropped; `lost` follows."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def pause(self) -> None:
        """Read nothing for a while."""
        if self._transport is not None and self._transport.is_reading():
            self._transport.pause_reading()

    def go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """What the socket did not take by now is dropped, so that a peer that does not read cannot hold it open."""
        if self._transport is not None:
            self._transport.abort() if self._transport.get_write_buffer_size() else self._transport.close()

    def abort(self) -> None:
        """Cut it without a word."""
        if self._transport is not None:
            self._transport.abort()

    # --- called by the loop -----------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=2 * MAX_CHUNK_BYTES)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.listener.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.listener.received(nbytes)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False
        self.listener.writable()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.closed.set_result(None)
        self.listener.lost(self, exc)
