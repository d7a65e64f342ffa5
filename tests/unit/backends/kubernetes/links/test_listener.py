"""The listening side against daemons that come, come again, and against those that are none."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest

from sandlot.backends.kubernetes.links.listener import CROWDED_S, Listener
from sandlot.backends.kubernetes.links.reception import HANDSHAKE_S
from sandlot.backends.kubernetes.links.registrar import Registrar
from sandlot.connection.noise import Initiator, StaticKey
from sandlot.connection.sealed import framed
from sandlot.errors import Closed, SandboxGone
from sandlot.limits import MAX_HALF_OPEN
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.testing.sealed import SealedDaemon

pytestmark = pytest.mark.looptime


class Port:
    """A listener on a socket of this machine's, whose bytes arrive when they are sent: virtual time needs that."""

    def __init__(self, path: Path) -> None:
        self.registrar = Registrar()
        self.conflicts: list[str] = []
        self._path = str(path)
        sock = socket.socket(socket.AF_UNIX)
        sock.bind(self._path)
        sock.listen(256)
        sock.setblocking(False)
        self.listener = Listener(sock, self.registrar, lambda name, _why: self.conflicts.append(name))
        self.daemons: list[SealedDaemon] = []

    def dial(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        sock.connect(self._path)
        return sock

    def pod(self, name: str = "box") -> SealedDaemon:
        """A registered sandbox's daemon, which has not yet dialled."""
        enrolment = self.registrar.register(name)
        return self.like(name, enrolment.public_key, enrolment.secret)

    def like(self, name: str, public_key: bytes, secret: bytes) -> SealedDaemon:
        daemon = SealedDaemon(name, public_key=public_key, secret=secret)
        self.daemons.append(daemon)
        return daemon

    async def came(self, daemon: SealedDaemon) -> None:
        await daemon.speak(self.dial())

    async def aclose(self) -> None:
        await self.listener.aclose()
        for daemon in self.daemons:
            await daemon.aclose()


@pytest.fixture
async def port(tmp_path: Path) -> AsyncIterator[Port]:
    made = Port(tmp_path / "socket")
    yield made
    await made.aclose()


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(100_000):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError("it never came to that")


async def closed(sock: socket.socket) -> bytes:
    """What the other side said until it closed the link."""
    loop, said = asyncio.get_running_loop(), b""
    try:
        while part := await loop.sock_recv(sock, 65_536):
            said += part
    except ConnectionResetError:
        pass
    sock.close()
    return said


def claim(port: Port, **fields: object) -> bytes:
    """A first message as one who knows the public key can make it."""
    payload = {"name": "box", "use": "enrol", "boot": os.urandom(8)} | fields
    return framed(Initiator(port.registrar.key.public, bytes(32)).write(msgspec.msgpack.encode(payload)))


# --- daemons ------------------------------------------------------------------------------------------------------------
async def test_a_daemon_that_comes_is_who_was_waited_for(port: Port) -> None:
    """Before or after it came; commands run on its link."""
    early, late = port.pod("early"), port.pod("late")
    waiting = asyncio.create_task(port.listener.arrival("late"))
    await port.came(early)
    await port.came(late)
    for daemon, connection in ((early, await port.listener.arrival("early")), (late, await waiting)):
        assert connection.name == daemon.name
        asked = asyncio.create_task(connection.ask(r.Usage(id=connection.next_id()), a.UsageOk))
        request = await daemon.next(r.Usage)
        daemon.send(a.UsageOk(id=request.id))
        await asked
        await connection.aclose()


async def test_a_daemon_that_comes_again_carries_its_commands_on(port: Port) -> None:
    """With the secret it was granted; the former link looks alive and is cut."""
    daemon = port.pod()
    await port.came(daemon)
    connection = await port.listener.arrival("box")
    connection.keep_open(lambda: port.listener.arrival("box"))
    call = connection.begin(r.Exec(id=connection.next_id(), key="k", script=b"x"), connection.output())
    first = await daemon.next(r.Exec)
    daemon.resume()
    await port.came(daemon)
    again = await daemon.next(r.Exec)
    assert again.key == first.key
    daemon.send(a.Exit(id=again.id, code=7))
    assert (await connection.finish(call)).code == 7
    assert connection.links_lost == 1
    await connection.aclose()


async def test_a_daemon_may_enrol_again_until_it_has_proved_itself(port: Port) -> None:
    """A link that broke before that has cost nothing."""
    daemon = port.pod()
    daemon.hello = False
    await port.came(daemon)
    await daemon.opened()
    daemon.reset()
    daemon.hello = True
    await port.came(daemon)
    await (await port.listener.arrival("box")).aclose()


async def test_a_second_process_with_the_same_secret_is_refused_and_reported(port: Port) -> None:
    """Whoever came first keeps the sandbox."""
    daemon = port.pod()
    thief = port.like("box", daemon.public_key, daemon.psk)
    await port.came(daemon)
    connection = await port.listener.arrival("box")
    await port.came(thief)
    await thief.wait_closed()
    assert not thief.granted
    assert port.conflicts == ["box"]
    assert connection.wire is not None
    await connection.aclose()


async def test_a_late_packet_of_the_same_daemon_is_no_conflict(port: Port) -> None:
    """Its enrolment is repeated after it has enrolled."""
    daemon = port.pod()
    await port.came(daemon)
    connection = await port.listener.arrival("box")
    again = port.like("box", daemon.public_key, daemon.psk)
    again.boot = daemon.boot
    await port.came(again)
    await again.wait_closed()
    assert port.conflicts == []
    await connection.aclose()


async def test_a_replayed_first_message_gets_nowhere(port: Port) -> None:
    """It was recorded in the network: the answer is sealed for who has the secret, and the true daemon keeps its link."""
    daemon = port.pod()
    recorded = claim(port, boot=daemon.boot)
    thief = port.dial()
    thief.sendall(recorded)
    await port.came(daemon)
    connection = await port.listener.arrival("box")
    thief.sendall(framed(bytes(64)))
    await closed(thief)
    assert connection.wire is not None
    assert port.conflicts == []
    await connection.aclose()


@pytest.mark.parametrize("wrong", ["secret", "public_key", "name"])
async def test_a_peer_with_something_wrong_is_closed_without_a_word(port: Port, wrong: str) -> None:
    """And the sandbox is still to come."""
    daemon = port.pod()
    other = port.like("box", daemon.public_key, daemon.psk)
    if wrong == "secret":
        other.psk = os.urandom(32)
    elif wrong == "public_key":
        other.public_key = StaticKey.generate().public
    else:
        other.claimed_name = "nobody"
    arrival = asyncio.create_task(port.listener.arrival("box"))
    await port.came(other)
    await other.wait_closed()
    assert not other.granted
    assert not arrival.done()
    await port.came(daemon)
    await (await arrival).aclose()


async def test_a_daemon_that_calls_itself_otherwise_is_refused(port: Port) -> None:
    """Its hello has another name than its claim."""
    daemon = port.pod()
    daemon.claimed_name = "box"
    daemon.name = "other"
    await port.came(daemon)
    await daemon.wait_closed()
    assert port.listener.refused == 1


# --- those that are none --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "garbage",
    [b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00", b"\xff" * 600, framed(bytes(300)), framed(bytes(510)), framed(bytes(511))],
)
async def test_garbage_is_closed_at_once(port: Port, garbage: bytes) -> None:
    """Without an answer, without waiting for more of it."""
    sock = port.dial()
    sock.sendall(garbage)
    assert await closed(sock) == b""
    assert asyncio.get_running_loop().time() < 1


async def test_bytes_behind_the_claim_are_a_breach(port: Port) -> None:
    """Nobody can know how to go on before the answer."""
    port.pod()
    sock = port.dial()
    sock.sendall(claim(port) + b"x")
    assert await closed(sock) == b""


async def test_a_claim_that_comes_byte_by_byte_is_read(port: Port) -> None:
    """The network cuts where it likes."""
    port.pod()
    sock = port.dial()
    loop = asyncio.get_running_loop()
    for byte in claim(port):
        sock.sendall(bytes([byte]))
        await asyncio.sleep(0.001)
    assert len(await loop.sock_recv(sock, 4_096)) > 32
    sock.close()


async def test_a_silent_peer_is_closed_after_its_time(port: Port) -> None:
    """Also one that has made its claim and then says no hello."""
    port.pod()
    silent, half = port.dial(), port.dial()
    half.sendall(claim(port))
    assert await closed(silent) == b""
    assert asyncio.get_running_loop().time() == pytest.approx(HANDSHAKE_S, abs=1)
    assert await closed(half) != b""
    assert asyncio.get_running_loop().time() == pytest.approx(HANDSHAKE_S, abs=1)


async def test_a_crowd_that_says_nothing_gives_way_to_an_honest_daemon(port: Port) -> None:
    """Whoever keeps a place without using it loses it to who comes next, the oldest first."""
    idle = [port.dial() for _ in range(MAX_HALF_OPEN)]
    daemon = port.pod()
    await port.came(daemon)
    connection = await port.listener.arrival("box")
    assert asyncio.get_running_loop().time() == pytest.approx(CROWDED_S, abs=0.2)
    assert await closed(idle[0]) == b""
    assert port.listener.refused == 1
    await connection.aclose()
    for sock in idle[1:]:
        sock.close()


async def test_a_burst_beyond_the_places_is_served_whole(port: Port) -> None:
    """What has no place waits in the kernel; nobody is sent away."""
    daemons = [port.pod(f"box-{number}") for number in range(3 * MAX_HALF_OPEN)]
    await asyncio.gather(*(port.came(daemon) for daemon in daemons))
    connections = await asyncio.gather(*(port.listener.arrival(daemon.name) for daemon in daemons))
    assert [connection.name for connection in connections] == [daemon.name for daemon in daemons]
    assert port.listener.refused == 0
    for connection in connections:
        await connection.aclose()


# --- who waits --------------------------------------------------------------------------------------------------------------
async def test_who_waits_for_a_forgotten_sandbox_is_told(port: Port) -> None:
    """And its daemon is sent away when it comes after all."""
    daemon = port.pod()
    waiting = asyncio.create_task(port.listener.arrival("box"))
    await asyncio.sleep(0)
    port.listener.forget("box")
    with pytest.raises(SandboxGone):
        await waiting
    with pytest.raises(SandboxGone):
        await port.listener.arrival("box")
    await port.came(daemon)
    await daemon.wait_closed()


async def test_a_link_that_nobody_took_is_closed_with_its_sandbox(port: Port) -> None:
    """Created, and deleted before it was used."""
    daemon = port.pod()
    await port.came(daemon)
    await until(lambda: port.listener.untaken > 0)
    port.listener.forget("box")
    await daemon.wait_closed()


async def test_a_link_that_came_as_its_waiter_was_cancelled_is_for_the_next(port: Port) -> None:
    """It is not lost between the two."""
    daemon = port.pod()
    waiting = asyncio.create_task(port.listener.arrival("box"))
    await asyncio.sleep(0)
    await port.came(daemon)
    waiter = port.listener._berths["box"]._waiting[0]
    await until(waiter.done)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await (await port.listener.arrival("box")).aclose()


async def test_a_link_that_died_untaken_is_not_handed_on(port: Port) -> None:
    """Who comes for it waits for the next."""
    daemon = port.pod()
    await port.came(daemon)
    await until(lambda: port.listener.untaken > 0)
    daemon.reset()
    await asyncio.sleep(0.1)
    waiting = asyncio.create_task(port.listener.arrival("box"))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    daemon.resume()
    await port.came(daemon)
    await (await waiting).aclose()


async def test_a_closed_listener_tells_who_waits_and_takes_nobody(port: Port) -> None:
    """Idempotent."""
    port.pod()
    waiting = asyncio.create_task(port.listener.arrival("box"))
    await asyncio.sleep(0)
    await port.listener.aclose()
    with pytest.raises(Closed):
        await waiting
    with pytest.raises(Closed):
        await port.listener.arrival("box")
    await port.listener.aclose()
