"""A daemon that does what a test tells it: the other end of real sockets, in the same event loop, with nothing behind it.

    async with ScriptedDaemon() as daemon:
        box = Sandbox(await daemon.connect(), reopen=daemon.connect)
        call = asyncio.create_task(box.exec("true"))
        request = await daemon.next(r.Exec)
        daemon.send(a.Exit(id=request.id, code=0))
        assert (await call).exit_code == 0

It answers hello and ping by itself unless told otherwise, and nothing else. For tests of clients, backends and providers
that need a peer that is silent, slow, confused, hostile or gone; what a sandbox really does is tested on the real daemon.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, Self, TypeVar, cast

import msgspec

from sandlot.connection import Connection
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.protocol.fields import Role
from sandlot.protocol.frames import encode

Kind = TypeVar("Kind", bound=r.Message)
_DECODERS = {"init": msgspec.msgpack.Decoder(r.ToInit | a.Error), "host": msgspec.msgpack.Decoder(r.ToHost | a.Error)}


class ScriptedDaemon:
    """See the module. `received` holds every message that came and was not taken by `next`, but hellos and pings."""

    def __init__(self, *, role: Role = "init", name: str = "scripted", hello: bool = True, pong: bool = True) -> None:
        self.role: Role = role
        self.name = name
        self.hello = hello
        """Whether it answers hello."""
        self.pong = pong
        """Whether it answers ping."""
        self.received: list[r.Message] = []
        self.links = 0
        """How many links were made to it."""
        self._link: Link | None = None
        self._links: list[Link] = []
        self._connections: list[Connection] = []
        self._news = asyncio.Event()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close every connection that was made to it, and all its links."""
        for connection in self._connections:
            await connection.aclose()
        for link in self._links:
            link.transport.abort()
            await link.lost

    async def connect(self, *, timeout_s: float = 10.0) -> Connection:
        """A connection to this daemon over a new link; fit for `Sandbox(reopen=...)`. The former link, if alive, stays open."""
        ours, theirs = socket.socketpair()
        await self._carry(theirs, Link(self))
        connection = await Connection.open(ours, role=self.role, timeout_s=timeout_s)
        self._connections.append(connection)
        return connection

    async def _carry(self, sock: socket.socket, link: Link) -> None:
        sock.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: link, sock=sock)
        self._adopt(link)

    def _adopt(self, link: Link) -> None:
        self._link = link
        self._links.append(link)
        self.links += 1

    async def next(self, kind: type[Kind]) -> Kind:
        """The next message of a kind, in the order of arrival; others stay in `received`."""
        while True:
            for position, message in enumerate(self.received):
                if isinstance(message, kind):
                    del self.received[position]
                    return message
            self._news.clear()
            await self._news.wait()

    def send(self, *messages: r.Message) -> None:
        self.send_raw(b"".join(encode(message) for message in messages))

    def send_raw(self, data: bytes) -> None:
        """Bytes as they are, on the newest link."""
        if self._link is None:
            raise RuntimeError("nobody is connected")
        self._link.write(data)

    def hang_up(self) -> None:
        """Close the link in order."""
        if self._link is not None:
            self._link.transport.close()

    def reset(self) -> None:
        """Cut the link without a word; what was not yet sent is lost."""
        if self._link is not None:
            self._link.transport.abort()

    def stop_reading(self) -> None:
        """Let the client's bytes pile up in the socket."""
        if self._link is not None:
            self._link.transport.pause_reading()

    def go_on_reading(self) -> None:
        if self._link is not None:
            self._link.transport.resume_reading()

    @property
    def connected(self) -> bool:
        """Whether the newest link is open on both sides, as far as is known here."""
        return self._link is not None and not self._link.lost.done()

    async def wait_closed(self) -> None:
        """Until the client has closed the newest link."""
        while self.connected:
            self._news.clear()
            await self._news.wait()

    def _take(self, body: bytes, link: Link) -> None:
        message: Any = _DECODERS[self.role].decode(body)
        if isinstance(message, r.Hello):
            if self.hello:
                link.write(encode(a.Welcome(version=1, role=self.role, daemon="scripted", name=self.name)))
        elif isinstance(message, r.Ping):
            if self.pong:
                link.write(encode(r.Pong(id=message.id)))
        else:
            self.received.append(message)
        self._news.set()

    def _closed(self) -> None:
        self._news.set()


class Link(asyncio.Protocol):
    """One link to a scripted daemon."""

    def __init__(self, daemon: ScriptedDaemon) -> None:
        self._daemon = daemon
        self._buffer = b""
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            (length,) = struct.unpack_from(">I", self._buffer)
            if len(self._buffer) < 4 + length:
                return
            body, self._buffer = self._buffer[4 : 4 + length], self._buffer[4 + length :]
            self._daemon._take(body, self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(None)
        self._daemon._closed()
