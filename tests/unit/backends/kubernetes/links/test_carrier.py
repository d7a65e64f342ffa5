"""A wire over a channel of messages: whatever is cancelled, the wire hears of its end."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.backends.kubernetes.links.carrier import Carrier
from sandlot.connection.wire import Wire


class Silent:
    """A channel that passes nothing on."""

    def __init__(self) -> None:
        self.hung_up = False

    async def receive(self) -> bytes:
        await asyncio.Event().wait()
        return b""

    async def send(self, data: bytes | memoryview) -> None:
        await asyncio.Event().wait()

    async def hang_up(self) -> None:
        self.hung_up = True

    def last_words(self) -> str:
        return ""


class Heard(Wire):
    """Only notes its end."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Nothing is sent."""

    def connection_lost(self, exc: Exception | None) -> None:
        self.ended.set()


@pytest.mark.parametrize("steps", [0, 1, 3])
async def test_a_wire_whose_tasks_are_all_cancelled_hears_of_its_end(steps: int) -> None:
    """As the end of an event loop does it: before they have begun, or later. The channel is given up."""
    before = asyncio.all_tasks()
    channel, wire = Silent(), Heard()
    Carrier(channel, wire)
    for _ in range(steps):
        await asyncio.sleep(0)
    for task in asyncio.all_tasks() - before:
        task.cancel()
    await wire.ended.wait()
    assert channel.hung_up
