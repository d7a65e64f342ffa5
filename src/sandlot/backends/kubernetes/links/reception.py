"""The provider's part of opening a sealed link, the same whoever opened the stream below it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable
from typing import Final, Protocol, cast

import msgspec

from sandlot import errors
from sandlot.backends.kubernetes.links.registrar import Claim, Conflict, Granted, Refused, Registrar
from sandlot.connection import Connection
from sandlot.connection.noise import Responder
from sandlot.connection.sealed import LENGTH_BYTES, SealedWire, framed
from sandlot.connection.wire import Listener, Wire
from sandlot.errors import ProtocolViolation, SandboxGone, TransportLost
from sandlot.limits import HANDSHAKE_MS, MAX_HANDSHAKE_BYTES

HANDSHAKE_S: Final = HANDSHAKE_MS / 1000
_UNACKED_MS: Final = 20_000  # a peer that acknowledges nothing for so long is dead (`wire/contract.md`)

_answers = msgspec.msgpack.Encoder()


def tune(sock: socket.socket) -> None:
    """What a TCP socket of a link has to be like. Those that a listening one accepts are as it is."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKED_MS)


class Stream(Protocol):
    """Where a claim can be read from, until a wire takes it over."""

    async def read(self, most: int) -> bytes:
        """What is there, at most so many bytes; empty at the end."""

    async def carry(self, wire: SealedWire) -> Wire:
        """From now on the stream is this wire's, to close too."""

    def close(self) -> None:
        """Unless a wire has it. Idempotent."""


class SocketStream(asyncio.BufferedProtocol):
    """A connected socket, which it owns. Its transport is the wire's later: a socket is put under watch by the loop once."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._room = memoryview(bytearray(MAX_HANDSHAKE_BYTES + 1))
        self._held = 0
        self._ended = False
        self._cause: Exception | None = None

    @classmethod
    async def own(cls, sock: socket.socket) -> SocketStream:
        """Take a connected socket, from now on this stream's to close."""
        stream = cls()
        sock.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: stream, sock=sock)
        return stream

    async def read(self, most: int) -> bytes:
        while not self._held and not self._ended:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        if not self._held and self._cause is not None:
            raise self._cause
        data = bytes(self._room[: min(most, self._held)])
        rest = self._held - len(data)
        self._room[:rest] = self._room[len(data) : self._held]
        self._held = rest
        return data

    async def carry(self, wire: SealedWire) -> Wire:
        transport = self._transport
        if transport is None or self._ended:
            raise TransportLost("the other side closed the link after its claim")
        if self._held:
            raise ProtocolViolation("a link on which more than a claim came before the answer")
        self._transport = None
        transport.set_protocol(wire)
        wire.connection_made(transport)
        return wire

    def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    # --- called by the loop -------------------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room[self._held :]

    def buffer_updated(self, nbytes: int) -> None:
        self._held += nbytes
        if self._held == len(self._room) and self._transport is not None:
            self._transport.pause_reading()  # more than any claim: nobody will want the rest
        self._wake()

    def eof_received(self) -> None:
        self._ended = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._ended, self._cause = None, True, exc
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


async def receive(stream: Stream, registrar: Registrar, *, expected: str | None = None) -> Connection:
    """Read a claim, grant it, and open the connection, whose hello is the daemon's proof. At most `HANDSHAKE_MS` in all.

    `expected`: the name that has to be claimed, when this side chose whom to call. The stream is closed unless this succeeds.

    Raises:
        Refused: there is no such sandbox, or it is another process that claims to be it.
        ProtocolViolation: no claim, another name, or a peer without the secret. Retriable.
        TransportLost, DeadlineExceeded: the peer went away or kept silent. Retriable.
    """
    try:
        async with asyncio.timeout(HANDSHAKE_S):
            return await _receive(stream, registrar, expected)
    except TimeoutError:
        raise errors.DeadlineExceeded(f"no link was opened within {HANDSHAKE_S:g} s") from None
    except OSError as error:
        raise TransportLost(f"the link broke while it was opened: {error.strerror}") from error
    finally:
        stream.close()


async def called(stream: Stream, name: str, registrar: Registrar) -> Connection:
    """As `receive`, for a stream on which this side has called the daemon of `name`.

    Raises:
        SandboxGone: the sandbox was forgotten, or another process claims to be its daemon.
        ProtocolViolation, TransportLost, DeadlineExceeded: as `receive`.
    """
    try:
        return await receive(stream, registrar, expected=name)
    except Conflict as refusal:
        raise SandboxGone(str(refusal), hint="somebody has read its enrolment secret: see who may read pods") from refusal
    except Refused as refusal:
        if name not in registrar:
            raise SandboxGone(f"{name} was deleted by this client") from refusal
        raise TransportLost(str(refusal)) from refusal


async def _receive(stream: Stream, registrar: Registrar, expected: str | None) -> Connection:
    responder = Responder(registrar.key)
    claim = Claim.read(responder.read(await _first_message(stream)))
    if expected is not None and claim.name != expected:
        raise ProtocolViolation(f"the daemon of {claim.name!r} answered where that of {expected!r} was called")
    grant = registrar.admit(claim)
    answer, ciphers = responder.write(grant.psk, _answers.encode(Granted(grant.resume)))

    def bring(listener: Listener) -> Awaitable[Wire]:
        return stream.carry(SealedWire(listener, ciphers, preface=framed(answer)))

    connection = await Connection.open_over(bring, timeout_s=None)  # the caller's bound holds
    try:
        if connection.name != claim.name:
            raise ProtocolViolation(f"the daemon of {claim.name!r} calls itself {connection.name!r}")
        registrar.confirm(grant)
    except BaseException:
        await connection.aclose()
        raise
    return connection


async def _first_message(stream: Stream) -> bytes:
    """Exactly one message: the peer cannot know how to go on before it has the answer."""
    data = b""
    while True:
        wanted = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "big") if len(data) >= LENGTH_BYTES else MAX_HANDSHAKE_BYTES
        if wanted > MAX_HANDSHAKE_BYTES or len(data) > wanted:
            raise ProtocolViolation("a link that does not begin with a claim")
        if len(data) == wanted:
            return data[LENGTH_BYTES:]
        part = await stream.read(MAX_HANDSHAKE_BYTES + 1 - len(data))
        if not part:
            raise TransportLost("the other side closed the link before its claim")
        data += part
