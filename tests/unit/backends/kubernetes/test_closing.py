"""Beginning and end of a client, interrupted wherever they wait: neither leaves anything open."""

from __future__ import annotations

import asyncio
import itertools
from typing import Final, get_args

import pytest

from sandlot.provider import Provider
from tests.cancelling import Plan, Who, count_waits
from tests.unit.backends.kubernetes.fake_api import FakeCluster
from tests.unit.backends.kubernetes.test_backend import SPEC, World, until

pytestmark = pytest.mark.looptime(noop_cycles=300)  # both ends of real sockets are here: bytes may be on their way

MOST: Final = 400
"""A call that waits more often does not end."""


async def close_interrupted(cluster: FakeCluster, plan: Plan) -> World:
    """A client with one sandbox; the event loop that ends cancels everything that runs for its close at that point."""
    made = World(cluster)
    node = asyncio.create_task(made.node())
    provider = Provider(made.backend)
    await provider.start()
    await provider.create(SPEC)
    await plan.run(provider.aclose)
    closing = await provider.aclose()
    node.cancel()
    assert (closing.created, closing.gone, closing.left) == (1, 1, ())
    assert not [event for event in provider.events if event.kind == "sweep.failed"]
    return made


async def hung_up(cluster: FakeCluster) -> None:
    """Nobody is connected any more."""
    async with asyncio.timeout(60):
        await until(lambda: cluster.connections == 0)


async def test_closing_goes_on_wherever_it_is_interrupted() -> None:
    """At each point of it, each of which is reached by a client of its own."""
    count_waits(asyncio.get_running_loop())
    async with FakeCluster() as cluster:
        for at in itertools.count(1):
            assert at <= MOST, "it waits again and again"
            plan = Plan(at, "every task")
            made = await close_interrupted(cluster, plan)
            assert made.left() == (0, 0)
            await hung_up(cluster)
            if not plan.reached:
                break
    assert at > 4


@pytest.mark.parametrize("who", get_args(Who))
async def test_start_that_is_interrupted_leaves_no_connection_and_no_task(who: Who) -> None:
    """What has begun by then is undone, also when the undoing is interrupted."""
    count_waits(asyncio.get_running_loop())
    async with FakeCluster() as cluster:
        for at in itertools.count(1):
            assert at <= MOST, "it waits again and again"
            before, plan, made = asyncio.all_tasks(), Plan(at, who), World(cluster)
            await plan.run(made.backend.start)
            await made.backend.aclose()
            await hung_up(cluster)
            assert asyncio.all_tasks() <= before
            if not plan.reached:
                break
    assert at > 4
