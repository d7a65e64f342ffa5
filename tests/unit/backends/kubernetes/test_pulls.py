"""The kubelet's word on how long a pull took."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.asking import Events
from sandlot.backends.kubernetes.objects import EventSeen, Metadata, Pod
from sandlot.backends.kubernetes.options import ClusterOptions
from sandlot.backends.kubernetes.pulls import MOST_S, pulled_s
from sandlot.backends.kubernetes.starting import Start
from sandlot.backends.kubernetes.unnoticed import Schedulers
from sandlot.backends.kubernetes.watching import Tracked
from tests.unit.backends.kubernetes.fake_api import NAMESPACE, FakeCluster, refusal
from tests.unit.backends.kubernetes.test_backend import Links

TOLD = 'Successfully pulled image "r/app:1" in 7s (8s including waiting). Image size: 5 bytes.'


def told(*messages: str, reason: str = "Pulled") -> list[EventSeen]:
    return [EventSeen(reason=reason, message=message) for message in messages]


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ('Successfully pulled image "r/a:1" in 1.234s (5.5s including waiting). Image size: 5 bytes.', 5.5),
        ('Successfully pulled image "r/a:1" in 734.5ms (734.5ms including waiting). Image size: 5 bytes.', 0.7345),
        ('Successfully pulled image "r/a:1" in 1m2.5s (1h1m2s including waiting)', 3662.0),
        ('Successfully pulled image "r/a:1" in 1m2.5s', 62.5),
        ('Successfully pulled image "r/a:1" in 12s.', 12.0),
        ('Container image "r/a:1" already present on machine', 0.0),
        ('Successfully pulled image "r/a:1" in a while (s including waiting)', 0.0),
        ('Successfully pulled image "r/a:1" in 9999h (9999h including waiting)', MOST_S),
        ("", 0.0),
    ],
)
def test_reads_how_long_a_pull_took(message: str, seconds: float) -> None:
    """With waiting for other pulls on the node; what is not understood counts as nothing."""
    assert pulled_s(told(message)) == pytest.approx(seconds)


def test_pulls_of_one_pod_add_up() -> None:
    """The daemon's image and the task's; other events say nothing."""
    one = 'Successfully pulled image "r/a:1" in 2s (2s including waiting)'
    assert pulled_s([*told(one, one), *told(one, reason="Pulling")]) == pytest.approx(4.0)


@asynccontextmanager
async def asking() -> AsyncIterator[tuple[FakeCluster, Start]]:
    """A cluster whose events tell of one pull."""
    async with FakeCluster() as cluster, await Api.open(cluster.load) as api:
        cluster.events = [{"type": "Normal", "reason": "Pulled", "message": TOLD}]
        yield cluster, Start(api, Schedulers(), Events(api, NAMESPACE), ClusterOptions(), Links())


def pod() -> Tracked:
    return Tracked("box", Pod(Metadata("box", uid="1")))


@pytest.mark.parametrize(("start_s", "pulls_s", "asked"), [(10.0, 8.0, 1), (5.0, 5.0, 1), (1.0, None, 0)])
async def test_a_slow_start_is_asked_for_its_pulls(start_s: float, pulls_s: float | None, asked: int) -> None:
    """They are never more than the start itself; no request is spent on a quick one."""
    async with asking() as (cluster, start):
        assert await start.pulls_s(pod(), start_s) == pulls_s
        assert cluster.count("GET", "events") == asked


async def test_one_pod_is_asked_for_at_a_time() -> None:
    """Others do without: a server that reads all events for each would be the next bottleneck."""
    async with asking() as (cluster, start):
        answers = await asyncio.gather(*(start.pulls_s(pod(), 10.0) for _ in range(20)))
        assert (answers.count(8.0), answers.count(None), cluster.count("GET", "events")) == (1, 19, 1)


async def test_who_may_not_read_events_knows_of_no_pull() -> None:
    """That is no failure of a sandbox that is there."""
    async with asking() as (cluster, start):
        with cluster.trouble("GET", "events", refusal(403)):
            assert await start.pulls_s(pod(), 10.0) is None
