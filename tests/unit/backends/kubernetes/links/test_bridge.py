"""The bridge against an API server that executes nothing: it joins the stream to a daemon's, in the channels of `exec`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from sandlot.backends.kubernetes.links.bridge import PROTOCOLS, bridge, bridge_when_up
from sandlot.backends.kubernetes.links.registrar import Registrar
from sandlot.errors import ProtocolViolation, SandboxGone, TransportLost
from sandlot.limits import MAX_CHUNK_BYTES
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.testing.sealed import SealedDaemon

Script = Callable[[web.WebSocketResponse], Awaitable[None]]
FAILED = {"status": "Failure", "message": "command terminated with exit code 3", "details": {"causes": []}}


class Server:
    """See the module. `script` says what an executed process does; by default it relays."""

    def __init__(self) -> None:
        self.asked: list[web.Request] = []
        self.script: Script = self.relay
        self.offers: Sequence[str] = PROTOCOLS
        self.daemon: tuple[str, int] | None = None
        self._session = aiohttp.ClientSession()
        app = web.Application()
        app.router.add_get("/api/v1/namespaces/{namespace}/pods/{name}/exec", self._exec)
        self._server = TestServer(app)

    async def websocket(
        self, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str]
    ) -> aiohttp.ClientWebSocketResponse:
        return await self._session.ws_connect(self._server.make_url(path), params=query, protocols=protocols)

    async def start(self) -> None:
        await self._server.start_server()

    async def aclose(self) -> None:
        await self._session.close()
        await self._server.close()

    async def _exec(self, request: web.Request) -> web.WebSocketResponse:
        self.asked.append(request)
        socket = web.WebSocketResponse(protocols=self.offers)
        await socket.prepare(request)
        for channel in (1, 2, 3):
            await socket.send_bytes(bytes([channel]))  # what a kubelet begins with
        await self.script(socket)
        await socket.close()
        return socket

    async def relay(self, socket: web.WebSocketResponse) -> None:
        if self.daemon is None:
            await socket.send_bytes(b"\x02sandlotd connect: no daemon here\n")
            await socket.send_bytes(b"\x03" + json.dumps(FAILED).encode())
            return
        reader, writer = await asyncio.open_connection(*self.daemon)

        async def outward() -> None:
            while data := await reader.read(1_000):
                await socket.send_bytes(b"\x01" + data)
            await socket.close()

        task = asyncio.create_task(outward())
        async for message in socket:
            assert message.data[0] == 0
            writer.write(message.data[1:])
            await writer.drain()
        writer.close()
        await task


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server()
    await made.start()
    yield made
    await made.aclose()


@pytest.fixture
def registrar() -> Registrar:
    return Registrar()


@pytest.fixture
async def pod(registrar: Registrar, server: Server) -> AsyncIterator[SealedDaemon]:
    enrolment = registrar.register("box")
    async with SealedDaemon("box", public_key=enrolment.public_key, secret=enrolment.secret) as daemon:
        server.daemon = await daemon.listen()
        yield daemon


async def test_commands_run_through_the_bridge(server: Server, registrar: Registrar, pod: SealedDaemon) -> None:
    """The relay is asked for in the task's container, with the newer protocol."""
    connection = await bridge(server, "box", registrar, namespace="team")
    call = connection.begin(r.Exec(id=connection.next_id(), key="k", script=b"x"), connection.output())
    request = await pod.next(r.Exec)
    pod.send(a.Exit(id=request.id, code=7))
    assert (await connection.finish(call)).code == 7
    await connection.aclose()
    (asked,) = server.asked
    assert asked.match_info["namespace"] == "team"
    assert asked.query.getall("command") == ["/sandlot/sandlotd", "connect"]
    assert asked.query["container"] == "task"


async def test_an_old_api_server_has_the_older_protocol(server: Server, registrar: Registrar, pod: SealedDaemon) -> None:
    """And the link is the same."""
    server.offers = PROTOCOLS[1:]
    connection = await bridge(server, "box", registrar, namespace="team")
    assert connection.name == "box"
    await connection.aclose()


async def test_much_data_passes_both_ways_in_order(server: Server, registrar: Registrar, pod: SealedDaemon) -> None:
    """Beyond every buffer on the way, with the flow control of the contract."""
    connection = await bridge(server, "box", registrar, namespace="team")
    source = connection.source()
    connection.begin(r.Write(id=connection.next_id(), path=b"/f", d=b"", eof=False), source)
    request = await pod.next(r.Write)
    sent = got = 0
    while got < 20 * MAX_CHUNK_BYTES:
        if sent < 20 * MAX_CHUNK_BYTES:
            room = await connection.wait_room(source)
            connection.send_data(source, bytes(room))
            sent += room
        data = await pod.next(r.Data)
        assert data.off == got
        got += len(data.d)
        pod.send(r.Ack(id=request.id, s=0, off=got))
    pod.send(a.WriteOk(id=request.id, size=got))
    assert (await source.future).size == got
    await connection.aclose()


async def test_a_lost_bridge_is_built_again(server: Server, registrar: Registrar, pod: SealedDaemon) -> None:
    """By the connection itself; the command goes on."""
    connection = await bridge(server, "box", registrar, namespace="team")
    connection.keep_open(lambda: bridge(server, "box", registrar, namespace="team"))
    pod.resume()
    call = connection.begin(r.Exec(id=connection.next_id(), key="k", script=b"x"), connection.output())
    await pod.next(r.Exec)
    pod.reset()
    again = await pod.next(r.Exec)
    pod.send(a.Exit(id=again.id, code=7))
    assert (await connection.finish(call)).code == 7
    assert len(server.asked) == 2
    await connection.aclose()


async def test_a_relay_that_finds_no_daemon_says_so(server: Server, registrar: Registrar) -> None:
    """Its own words are in the error."""
    registrar.register("box")
    with pytest.raises(TransportLost, match="no daemon here"):
        await bridge(server, "box", registrar, namespace="team")


async def test_a_status_alone_is_told_too(server: Server, registrar: Registrar) -> None:
    """When the process could not be started."""

    async def fails(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(b"\x03" + json.dumps(FAILED | {"message": "no such file"}).encode())

    registrar.register("box")
    server.script = fails
    with pytest.raises(TransportLost, match="no such file"):
        await bridge(server, "box", registrar, namespace="team")


async def test_the_bridge_is_tried_until_the_daemon_is_up(server: Server, registrar: Registrar, pod: SealedDaemon) -> None:
    """A container may run before its daemon listens."""
    address, server.daemon = server.daemon, None
    building = asyncio.create_task(bridge_when_up(server, "box", registrar, namespace="team", within_s=60))
    while not server.asked:  # noqa: ASYNC110 - the first try is the server's to see
        await asyncio.sleep(0.01)
    server.daemon = address
    await (await building).aclose()


@pytest.mark.parametrize("says", [b"\x01HTTP/1.1 400\r\n", b"\x01" + bytes(600), b"\x09x", b""])
async def test_what_is_no_daemon_ends_the_bridge(server: Server, registrar: Registrar, says: bytes) -> None:
    """Whatever it says, then nothing."""

    async def talks(socket: web.WebSocketResponse) -> None:
        await socket.send_bytes(says)

    registrar.register("box")
    server.script = talks
    with pytest.raises((ProtocolViolation, TransportLost)):
        await bridge(server, "box", registrar, namespace="team")


async def test_text_where_bytes_belong_is_a_breach(server: Server, registrar: Registrar, pod: SealedDaemon) -> None:
    """Something between here and the API server speaks another protocol."""

    async def talks(socket: web.WebSocketResponse) -> None:
        await socket.send_str("hello")

    server.script = talks
    with pytest.raises(ProtocolViolation):
        await bridge(server, "box", registrar, namespace="team")


async def test_a_cancelled_bridge_leaves_no_stream(server: Server, registrar: Registrar) -> None:
    """In the middle of the handshake: the API server sees the end."""
    begun, ended = asyncio.Event(), asyncio.Event()

    async def silent(socket: web.WebSocketResponse) -> None:
        begun.set()
        try:
            async for _ in socket:
                pass
        finally:
            ended.set()

    registrar.register("box")
    server.script = silent
    building = asyncio.create_task(bridge(server, "box", registrar, namespace="team"))
    await begun.wait()
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    await ended.wait()


async def test_a_second_process_under_the_name_means_the_sandbox_is_gone(
    server: Server, registrar: Registrar, pod: SealedDaemon
) -> None:
    """As for every other way."""
    connection = await bridge(server, "box", registrar, namespace="team")
    pod.boot = b"other..."
    with pytest.raises(SandboxGone):
        await bridge_when_up(server, "box", registrar, namespace="team", within_s=60)
    await connection.aclose()
