"""A scripted daemon at the other end of a sealed link: it enrols, resumes, dials and listens as the one in a pod does.

enrolment = registrar.register("box")
async with SealedDaemon("box", enrolment) as daemon:
    await daemon.dial(("127.0.0.1", listener.port))
    connection = await listener.arrival("box")
"""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

import msgspec

from sandlot.connection.noise import Ciphers, Initiator
from sandlot.connection.sealed import LENGTH_BYTES, framed
from sandlot.limits import MAX_SEALED_BYTES
from sandlot.testing.scripted import Link, ScriptedDaemon


class SealedDaemon(ScriptedDaemon):
    """See the module. `public_key` is the provider's, `secret` that of the one enrolment; both may be wrong ones."""

    def __init__(self, name: str, *, public_key: bytes, secret: bytes, boot: bytes | None = None, **script: Any) -> None:
        super().__init__(name=name, **script)
        self.public_key = public_key
        self.boot = boot if boot is not None else os.urandom(8)
        self.claimed_name = name
        self.use = "enrol"
        self.psk = secret
        self.granted: list[bytes] = []
        """Every secret that was granted for resuming, the newest last."""
        self._server: asyncio.Server | None = None

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        await super().aclose()

    def resume(self) -> None:
        """Use the newest granted secret from now on."""
        self.use, self.psk = "resume", self.granted[-1]

    async def dial(self, address: tuple[str, int]) -> None:
        """Connect to a listening provider and make the claim; what comes of it shows later."""
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, address)
        await self.speak(sock)

    async def speak(self, sock: socket.socket) -> None:
        """Make the claim on a connected socket, which the daemon then owns."""
        await self._carry(sock, SealedLink(self))

    async def listen(self, sock: socket.socket | None = None) -> tuple[str, int]:
        """Wait for a provider that dials in: at the address of a bound socket, or at this one."""
        if sock is None:
            sock = socket.create_server(("127.0.0.1", 0))

        def accepted() -> Link:
            link = SealedLink(self)
            self._adopt(link)
            return link

        self._server = await asyncio.get_running_loop().create_server(accepted, sock=sock)
        address: tuple[str, int] = self._server.sockets[0].getsockname()
        return address

    async def opened(self) -> None:
        """Until the newest link has its keys."""
        while not (isinstance(self._link, SealedLink) and self._link.open):
            self._news.clear()
            await self._news.wait()

    def claim(self) -> bytes:
        """The payload of message 1."""
        return msgspec.msgpack.encode({"name": self.claimed_name, "use": self.use, "boot": self.boot})


class SealedLink(Link):
    """The initiator's side."""

    def __init__(self, daemon: SealedDaemon) -> None:
        super().__init__(daemon)
        self._sealed = daemon
        self._handshake = Initiator(daemon.public_key, daemon.psk)
        self._ciphers: Ciphers | None = None
        self._raw = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.transport.write(framed(self._handshake.write(self._sealed.claim())))

    @property
    def open(self) -> bool:
        return self._ciphers is not None

    def write(self, data: bytes) -> None:
        if self._ciphers is None:
            raise RuntimeError("the link is not open yet")
        for begin in range(0, len(data), MAX_SEALED_BYTES):
            super().write(framed(self._ciphers.send.seal(data[begin : begin + MAX_SEALED_BYTES])))

    def data_received(self, data: bytes) -> None:
        self._raw += data
        while len(self._raw) >= LENGTH_BYTES:
            end = LENGTH_BYTES + int.from_bytes(self._raw[:LENGTH_BYTES], "big")
            if len(self._raw) < end:
                return
            message, self._raw = self._raw[LENGTH_BYTES:end], self._raw[end:]
            if self._ciphers is None:
                answer, self._ciphers = self._handshake.read(message)
                self._sealed.granted.append(msgspec.msgpack.decode(answer)["resume"])
                self._sealed._news.set()
            else:
                super().data_received(self._ciphers.receive.open(message))
