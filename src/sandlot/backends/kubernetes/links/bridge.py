"""Exec-bridge: a link through the API server, for clients that pods cannot reach and that cannot reach pods.

`sandlotd connect`, executed in the pod, relays its standard input and output to the daemon, which speaks first as always.
What passes the API server and the kubelet is sealed. It is the slowest way, and every link is a stream that the API server
has to carry: for a client at home, not for thousands of sandboxes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Protocol

import msgspec

from sandlot.backends.kubernetes.api_errors import ApiNotFound
from sandlot.backends.kubernetes.links.carrier import Carrier
from sandlot.backends.kubernetes.links.persisting import until_up
from sandlot.backends.kubernetes.links.reception import called
from sandlot.backends.kubernetes.links.registrar import Registrar
from sandlot.connection import Connection
from sandlot.connection.sealed import SealedWire
from sandlot.connection.wire import Wire
from sandlot.errors import ProtocolViolation, SandboxGone, TransportLost

if TYPE_CHECKING:
    import aiohttp

PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
"""The newer one can tell that one channel is closed; nothing here needs it, and old API servers have only the other."""

RELAY: Final = ("/sandlot/sandlotd", "connect")
FIRST_PAUSE_S: Final = 0.2  # each try makes the API server and the kubelet start a process
LONGEST_PAUSE_S: Final = 2.0

_STDIN, _STDOUT, _STDERR, _STATUS, _CLOSE = 0, 1, 2, 3, 255
_LAST_WORDS_BYTES: Final = 1_024


class Opener(Protocol):
    """What of the API is needed here."""

    async def websocket(
        self, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str]
    ) -> aiohttp.ClientWebSocketResponse: ...


async def bridge(api: Opener, name: str, registrar: Registrar, *, namespace: str, container: str = "task") -> Connection:
    """A link to the daemon in the pod `name`: one attempt. Fit for `Connection.keep_open`, which tries again.

    Raises:
        TransportLost: no daemon is up there (yet), or the stream broke. Retriable.
        SandboxGone: there is no such pod, the sandbox was forgotten, or another process claims to be its daemon.
        ApiError: the API server refuses to execute anything there; its class says whose fault that is.
    """
    query = [("container", container), ("stdin", "true"), ("stdout", "true"), ("stderr", "true")]
    query += [("command", word) for word in RELAY]
    try:
        socket = await api.websocket(f"/api/v1/namespaces/{namespace}/pods/{name}/exec", query, PROTOCOLS)
    except ApiNotFound as error:
        raise SandboxGone(f"the pod of {name} is no more", why="unknown") from error
    stream = ExecStream(socket)
    try:
        return await called(stream, name, registrar)
    finally:
        await stream.ended()


async def bridge_when_up(
    api: Opener, name: str, registrar: Registrar, *, namespace: str, within_s: float, container: str = "task"
) -> Connection:
    """As `bridge`, again and again until the daemon is up, for at most `within_s` seconds.

    Raises:
        TransportLost: it did not come up; the last reason is in the text. Retriable.
        SandboxGone, ApiError: as `bridge`.
    """
    return await until_up(
        lambda: bridge(api, name, registrar, namespace=namespace, container=container),
        within_s=within_s,
        first_pause_s=FIRST_PAUSE_S,
        longest_pause_s=LONGEST_PAUSE_S,
    )


class _Cause(msgspec.Struct, frozen=True):
    reason: str = ""
    message: str = ""


class _Details(msgspec.Struct, frozen=True):
    causes: tuple[_Cause, ...] = ()


class _Status(msgspec.Struct, frozen=True):
    """How the process in the pod has ended, as far as it is used."""

    status: str = ""
    message: str = ""
    details: _Details | None = None


_statuses = msgspec.json.Decoder(_Status)


class ExecStream:
    """The standard output of an executed process as bytes, its standard input as a place for them."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._left = b""
        self._words = b""
        self._why = ""
        self._carried = False

    # --- for the handshake ------------------------------------------------------------------------------------------
    async def read(self, most: int) -> bytes:
        if not self._left:
            self._left = await self.receive()
        if not self._left:
            raise TransportLost(f"the bridge into the pod has ended{self.last_words()}")
        data, self._left = self._left[:most], self._left[most:]
        return data

    async def carry(self, wire: SealedWire) -> Wire:
        self._carried = True
        left, self._left = self._left, b""
        Carrier(self, wire, left)
        return wire

    def close(self) -> None:
        """Closing takes a while on a WebSocket: see `ended`."""

    async def ended(self) -> None:
        """Close it, unless a wire has it."""
        if not self._carried:
            await self.hang_up()

    # --- for the carrier --------------------------------------------------------------------------------------------
    async def receive(self) -> bytes:
        """The next bytes of standard output; empty at the end, of which `last_words` tells.

        Raises:
            ProtocolViolation: that is no stream of an executed process.
        """
        import aiohttp

        while True:
            message = await self._socket.receive()
            if message.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSING, aiohttp.WSMsgType.CLOSED):
                return b""
            if message.type is aiohttp.WSMsgType.ERROR:
                self._why = str(message.data)
                return b""
            if message.type is not aiohttp.WSMsgType.BINARY or not message.data:
                raise ProtocolViolation("the API server's stream is not understood")
            channel, data = message.data[0], message.data[1:]
            if channel == _STDOUT and data:
                return bytes(data)
            if channel == _STDERR:
                self._words = (self._words + data)[-_LAST_WORDS_BYTES:]
            elif channel == _STATUS and data:
                self._why = _reason(data)
                return b""
            elif channel == _CLOSE and data == bytes((_STDOUT,)):
                return b""

    async def send(self, data: bytes | memoryview) -> None:
        """Returns when the socket has taken it, or most of it.

        Raises:
            ConnectionError: the socket is closed.
        """
        await self._socket.send_bytes(b"\0" + data)

    async def hang_up(self) -> None:
        """Close the socket without waiting long for the other side's word. Idempotent."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1):
                await self._socket.close()

    def last_words(self) -> str:
        """What the process or the API server said at the end, for the text of an error: with what stands before it."""
        said = " ".join(self._words.decode("utf-8", "replace").split()) or self._why
        return f": {said}" if said else ""


def _reason(data: bytes) -> str:
    try:
        status = _statuses.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return "an end that is not understood"
    return "" if status.status == "Success" else status.message[:_LAST_WORDS_BYTES]
