"""Calling daemons at their addresses: those that are up, not yet up, somebody else, or no daemon at all."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator

import pytest

from sandlot.backends.kubernetes.links.dial_in import dial_in, dial_in_when_up
from sandlot.backends.kubernetes.links.registrar import Registrar
from sandlot.errors import Infrastructure, ProtocolViolation, SandboxGone, TransportLost
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.testing.sealed import SealedDaemon

PATIENCE_S = 60.0
"""Far beyond what any of this takes; nothing here waits for time to pass."""


@pytest.fixture
def registrar() -> Registrar:
    return Registrar()


@pytest.fixture
async def pod(registrar: Registrar) -> AsyncIterator[SealedDaemon]:
    enrolment = registrar.register("box")
    async with SealedDaemon("box", public_key=enrolment.public_key, secret=enrolment.secret) as daemon:
        yield daemon


def reserved() -> socket.socket:
    """An address at which nobody listens, and nobody else can."""
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


async def test_a_daemon_that_listens_is_reached_and_enrols(registrar: Registrar, pod: SealedDaemon) -> None:
    """And resumes when it is called again; both links are of use."""
    address = await pod.listen()
    first = await dial_in(address, "box", registrar)
    pod.resume()
    second = await dial_in(address, "box", registrar)
    asked = asyncio.create_task(second.ask(r.Usage(id=second.next_id()), a.UsageOk))
    request = await pod.next(r.Usage)
    pod.send(a.UsageOk(id=request.id))
    await asked
    for connection in (first, second):
        assert connection.wire is not None
        await connection.aclose()


async def test_a_lost_link_is_dialled_again(registrar: Registrar, pod: SealedDaemon) -> None:
    """By the connection itself; the command goes on."""
    address = await pod.listen()
    connection = await dial_in(address, "box", registrar)
    connection.keep_open(lambda: dial_in(address, "box", registrar), within_s=PATIENCE_S)
    pod.resume()
    call = connection.begin(r.Exec(id=connection.next_id(), key="k", script=b"x"), connection.output())
    first = await pod.next(r.Exec)
    pod.reset()
    again = await pod.next(r.Exec)
    assert again.key == first.key
    pod.send(a.Exit(id=again.id, code=7))
    assert (await connection.finish(call)).code == 7
    await connection.aclose()


async def test_an_address_without_a_daemon_is_a_lost_link(registrar: Registrar, pod: SealedDaemon) -> None:
    """At once, and retriable."""
    with reserved() as sock, pytest.raises(TransportLost, match=r"could not be reached: Connection refused"):
        await dial_in(sock.getsockname(), "box", registrar)


async def test_a_daemon_that_is_not_up_yet_is_called_until_it_is(registrar: Registrar, pod: SealedDaemon) -> None:
    """The image may still be on its way."""
    sock = reserved()
    dialling = asyncio.create_task(dial_in_when_up(sock.getsockname(), "box", registrar, within_s=PATIENCE_S))
    await asyncio.sleep(0.05)
    assert not dialling.done()
    await pod.listen(sock)
    await (await dialling).aclose()


async def test_a_daemon_that_never_comes_up_is_given_up_with_the_reason(registrar: Registrar, pod: SealedDaemon) -> None:
    """The last one."""
    with reserved() as sock, pytest.raises(TransportLost, match=r"no link within 0 s: .*Connection refused"):
        await dial_in_when_up(sock.getsockname(), "box", registrar, within_s=0)


async def test_another_sandbox_at_the_address_is_not_taken_for_it(registrar: Registrar) -> None:
    """Addresses of pods are used again: the daemon's name decides, also between sandboxes of one client."""
    other = registrar.register("other")
    registrar.register("box")
    async with SealedDaemon("other", public_key=other.public_key, secret=other.secret) as daemon:
        address = await daemon.listen()
        with pytest.raises(ProtocolViolation, match="'other' answered"):
            await dial_in(address, "box", registrar)


async def test_a_daemon_of_another_provider_is_not_taken_for_it(registrar: Registrar) -> None:
    """It cannot even read whom it was called for."""
    registrar.register("box")
    async with SealedDaemon("box", public_key=Registrar().key.public, secret=os.urandom(32)) as daemon:
        address = await daemon.listen()
        with pytest.raises(ProtocolViolation):
            await dial_in(address, "box", registrar)


async def test_a_second_process_under_the_name_means_the_sandbox_is_gone(registrar: Registrar, pod: SealedDaemon) -> None:
    """Another boot: whatever it is, it is not the daemon whose commands ran here."""
    address = await pod.listen()
    connection = await dial_in(address, "box", registrar)
    pod.boot = os.urandom(8)
    pod.resume()
    with pytest.raises(SandboxGone, match="second process"):
        await dial_in_when_up(address, "box", registrar, within_s=PATIENCE_S)
    await connection.aclose()


async def test_a_forgotten_sandbox_is_gone(registrar: Registrar, pod: SealedDaemon) -> None:
    """Nobody goes on calling it."""
    address = await pod.listen()
    registrar.forget("box")
    with pytest.raises(SandboxGone):
        await dial_in_when_up(address, "box", registrar, within_s=PATIENCE_S)


@pytest.mark.parametrize("says", [b"", b"SSH-2.0-something\r\n", b"\x00\x01x", bytes(600)])
async def test_something_else_that_listens_is_a_retriable_failure(registrar: Registrar, pod: SealedDaemon, says: bytes) -> None:
    """Whatever it says, and then closes."""

    async def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(says)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        with pytest.raises(Infrastructure):
            await dial_in(server.sockets[0].getsockname(), "box", registrar)


async def test_a_cancelled_call_leaves_nothing_open(registrar: Registrar, pod: SealedDaemon) -> None:
    """In the middle of the handshake: the other side sees the end."""
    closed = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.read() == b""
        closed.set()
        writer.close()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        dialling = asyncio.create_task(dial_in(server.sockets[0].getsockname(), "box", registrar))
        await asyncio.sleep(0.01)
        dialling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dialling
        await closed.wait()
