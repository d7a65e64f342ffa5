"""The listening socket itself, over TCP: on every address, one a port."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator

import pytest

from sandlot.backends.kubernetes.links.listener import Listener
from sandlot.backends.kubernetes.links.registrar import Registrar
from sandlot.errors import Unsupported
from sandlot.testing.sealed import SealedDaemon

_NO_IPV6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6 here")
FAMILIES = ["127.0.0.1", pytest.param("::1", marks=[_NO_IPV6, pytest.mark.may_lack])]


def nobody(name: str, why: str) -> None:
    raise AssertionError(f"{name}: {why}")


@pytest.fixture
async def listener() -> AsyncIterator[Listener]:
    made = await Listener.open(Registrar(), on_conflict=nobody)
    yield made
    await made.aclose()


@pytest.mark.parametrize("host", FAMILIES)
async def test_daemons_come_over_either_protocol(host: str) -> None:
    """One socket for both, where the machine has both; its links send at once."""
    registrar = Registrar()
    listener = await Listener.open(registrar, on_conflict=nobody)
    enrolment = registrar.register("box")
    async with SealedDaemon("box", public_key=enrolment.public_key, secret=enrolment.secret) as daemon:
        try:
            await daemon.dial((host, listener.port))
        except OSError:
            if host == "127.0.0.1":
                raise
            pytest.skip("no IPv6 on this machine's loopback")
        else:
            connection = await listener.arrival("box")
            assert connection.wire is not None
            assert connection.wire._transport is not None
            sock = connection.wire._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
            await connection.aclose()
        finally:
            await listener.aclose()


async def test_a_taken_port_is_told_before_anything_is_made(listener: Listener) -> None:
    """With what to do about it."""
    with pytest.raises(Unsupported, match=f"port {listener.port}"):
        await Listener.open(Registrar(), on_conflict=nobody, port=listener.port)


async def test_a_listener_can_be_on_one_address_alone() -> None:
    """Nobody reaches it by another."""
    listener = await Listener.open(Registrar(), on_conflict=nobody, host="127.0.0.1")
    assert listener.port > 0
    with socket.socket() as sock, pytest.raises(ConnectionRefusedError):
        sock.connect(("127.0.0.2", listener.port))
    await listener.aclose()
