"""Asking for events without keeping the API server busy with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.asking import SHARE, Events
from tests.unit.backends.kubernetes.fake_api import NAMESPACE, FakeCluster, refusal

pytestmark = pytest.mark.looptime(noop_cycles=300)  # both ends of real sockets are here: bytes may be on their way

SLOW_S = 2.0


def warning(uid: str) -> dict[str, Any]:
    return {"type": "Warning", "reason": "FailedMount", "message": uid, "involvedObject": {"uid": uid}}


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        cluster.events = [warning(f"u{number}") for number in range(50)]
        yield cluster


@pytest.fixture
async def api(cluster: FakeCluster) -> AsyncIterator[Api]:
    async with await Api.open(cluster.load) as api:
        yield api


async def slowly(_request: web.Request) -> None:
    await asyncio.sleep(SLOW_S)


async def test_one_look_serves_every_pod_that_is_stuck(cluster: FakeCluster, api: Api) -> None:
    """Each is told what is said of itself."""
    events = Events(api, NAMESPACE)
    found = await asyncio.gather(*(events.warnings(f"u{number}") for number in range(60)))
    assert [[one.message for one in each] for each in found] == [[f"u{n}"] if n < 50 else [] for n in range(60)]
    assert cluster.count("GET", "events") == 1


async def test_it_rests_after_each_question_as_its_share_says(cluster: FakeCluster, api: Api) -> None:
    """A server that answers slowly is asked seldom; meanwhile what was found is told again."""
    events, clock = Events(api, NAMESPACE), asyncio.get_running_loop().time
    with cluster.trouble("GET", "events", slowly):
        began_s = clock()
        await events.warnings("u1")
        asked_s = clock() - began_s
    cluster.events = [warning("u2")]
    assert [one.message for one in await events.warnings("u1")] == ["u1"]
    assert await events.of("u1") == ()
    assert cluster.count("GET", "events") == 1
    await asyncio.sleep(asked_s * (1 / SHARE - 1) - 1)
    assert [one.message for one in await events.warnings("u1")] == ["u1"]
    await asyncio.sleep(2)
    assert await events.warnings("u1") == ()
    assert cluster.count("GET", "events") == 2


async def test_a_refusal_is_no_news_and_no_failure(cluster: FakeCluster, api: Api) -> None:
    """Who may not read events knows of none."""
    events = Events(api, NAMESPACE)
    with cluster.trouble("GET", "events", refusal(403)):
        assert await events.warnings("u1") == ()
    assert cluster.count("GET", "events") == 1


async def test_whoever_stops_waiting_stops_nobody_else(cluster: FakeCluster, api: Api) -> None:
    """The look is everybody's."""
    events = Events(api, NAMESPACE)
    with cluster.trouble("GET", "events", slowly):
        first, second = (asyncio.ensure_future(events.warnings("u1")) for _ in range(2))
        await asyncio.sleep(SLOW_S / 4)
        first.cancel()
        assert len(await second) == 1
    assert cluster.count("GET", "events") == 1


async def test_a_look_that_was_just_decided_is_a_question_under_way(cluster: FakeCluster, api: Api) -> None:
    """Nobody else asks in the moment before it begins."""
    events = Events(api, NAMESPACE)
    found = await asyncio.gather(events.warnings("u1"), events.of("u1"))
    assert [len(each) for each in found] == [1, 0]
    assert cluster.count("GET", "events") == 1
