"""One watch for everything: it survives cuts, ends, versions that are too old, and forgets what nobody asks for."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest

from sandlot.backends.base import Gone
from sandlot.backends.kubernetes import naming
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.objects import Named
from sandlot.backends.kubernetes.watching import PodWatch, Roster, Tracked
from tests.unit.backends.kubernetes.fake_api import FakeCluster, refusal

pytestmark = pytest.mark.looptime(noop_cycles=300)  # both ends of real sockets are here: bytes may be on their way

PODS = "/api/v1/namespaces/boxes/pods"


@pytest.fixture
async def watch(api: Api) -> AsyncIterator[PodWatch]:
    """Running, with a roster of its own."""
    watch = PodWatch(api, PODS, naming.selector(client="c1"), Roster(asyncio.get_running_loop().time))
    task = asyncio.create_task(watch.run())
    yield watch
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def post(api: Api, name: str, client: str = "c1") -> None:
    labels = {naming.CLIENT: client, naming.KIND: "sandbox"}
    await api.post(PODS, json.dumps({"metadata": {"name": name, "labels": labels}, "spec": {}}).encode(), Named)


def seen(pod: Tracked) -> bool:
    return pod.pod is not None


async def usable(api: Api, cluster: FakeCluster, watch: PodWatch, name: str) -> Tracked:
    """A pod that has become a sandbox."""
    pod = watch.roster.expect(name)
    await post(api, name)
    await cluster.run(name)
    await pod.wait(lambda one: "running" in one.times_s)
    pod.usable = True
    return pod


class Departures:
    """What a roster tells its listeners."""

    def __init__(self, roster: Roster) -> None:
        self.gone: list[Gone] = []
        self._task = asyncio.ensure_future(self._follow(roster))

    async def _follow(self, roster: Roster) -> None:
        async for gone in roster.departures():
            self.gone.append(gone)

    async def ended(self) -> list[Gone]:
        await self._task
        return self.gone


async def test_what_happens_to_a_pod_is_seen(cluster: FakeCluster, api: Api, watch: PodWatch) -> None:
    """Its place, its address, its run and its end, without asking for any of it."""
    pod = await usable(api, cluster, watch, "p")
    assert pod.pod is not None
    assert (pod.pod.spec.node_name, pod.pod.status.pod_ip) == ("n1", "198.18.0.9")
    assert set(pod.times_s) == {"scheduled", "running"}
    await cluster.remove("pods", "p")
    await pod.wait(lambda one: one.absent)
    assert cluster.count("GET", "watch=1") == 1


async def test_usable_sandbox_that_ends_is_told_once(cluster: FakeCluster, api: Api, watch: PodWatch) -> None:
    """By its failure, not again by the deletion of its pod; and not at all when this client wanted it gone."""
    departures = Departures(watch.roster)
    await usable(api, cluster, watch, "one")
    two = await usable(api, cluster, watch, "two")
    killed = {"name": "task", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
    await cluster.set_status("one", phase="Failed", containerStatuses=[killed])
    two.deleting = True
    await cluster.remove("pods", "one")
    await cluster.remove("pods", "two")
    await two.wait(lambda pod: pod.absent)
    watch.roster.close()
    assert await departures.ended() == [Gone("one", "oom", "OOMKilled")]


async def test_cut_watch_goes_on_where_it_was(cluster: FakeCluster, api: Api, watch: PodWatch) -> None:
    """What happened meanwhile is seen, and nothing is listed again."""
    pod = await usable(api, cluster, watch, "p")
    with cluster.trouble("GET", "watch=1", refusal(503)):
        await cluster.cut()
        await cluster.remove("pods", "p")
        await asyncio.sleep(2)
        assert not pod.absent
    await pod.wait(lambda one: one.absent)
    assert (watch.lists, watch.breaks > 0) == (1, True)


async def test_watch_too_old_begins_anew(cluster: FakeCluster, api: Api, watch: PodWatch) -> None:
    """410: everything is listed again; what is missing then has ended."""
    departures = Departures(watch.roster)
    gone, stays = await usable(api, cluster, watch, "gone"), await usable(api, cluster, watch, "stays")
    with cluster.trouble("GET", "watch=1", refusal(503)):
        await cluster.cut()
        await cluster.remove("pods", "gone")
        cluster.compact()
        await asyncio.sleep(1)
    await gone.wait(lambda one: one.absent)
    assert (watch.lists, stays.absent) == (2, False)
    watch.roster.close()
    assert [one.name for one in await departures.ended()] == ["gone"]


@pytest.mark.parametrize("status", [401, 403, 500])
async def test_watch_is_never_given_up(cluster: FakeCluster, api: Api, watch: PodWatch, status: int) -> None:
    """Even a refusal may be put right: it is tried again, some seconds apart."""
    await usable(api, cluster, watch, "p")
    with cluster.trouble("GET", "pods", refusal(status)):
        await cluster.cut()
        await asyncio.sleep(120)
        assert 20 <= watch.breaks <= 60
    pod = watch.roster.expect("late")
    await post(api, "late")
    await pod.wait(seen)


async def test_bookmarks_keep_a_quiet_watch_young(cluster: FakeCluster, api: Api, watch: PodWatch) -> None:
    """The place to go on from moves though nothing of ours happens."""
    await usable(api, cluster, watch, "p")
    await cluster.bookmark()
    cluster.compact()
    mark = watch.roster.expect("q")
    await post(api, "q")
    await mark.wait(seen)
    await cluster.cut()
    last = watch.roster.expect("r")
    await post(api, "r")
    await last.wait(seen)
    assert watch.lists == 1


async def test_nothing_is_remembered_of_what_was_not_expected(cluster: FakeCluster, api: Api, watch: PodWatch) -> None:
    """Pods of others, and of ours that are forgotten."""
    await post(api, "others", client="c2")
    await post(api, "unknown")
    pod = watch.roster.expect("known")
    await post(api, "known")
    await pod.wait(seen)
    assert len(watch.roster) == 1
    watch.roster.forget("known")
    await cluster.remove("pods", "known")
    assert len(watch.roster) == 0


async def test_client_taken_for_dead_loses_what_is_attached(cluster: FakeCluster, api: Api, watch: PodWatch) -> None:
    """Leased sandboxes have Leases of their own."""
    departures = Departures(watch.roster)
    attached, leased = await usable(api, cluster, watch, "attached"), await usable(api, cluster, watch, "leased")
    leased.leased = True
    watch.roster.fence()
    watch.roster.close()
    assert [(one.name, one.why) for one in await departures.ended()] == [("attached", "lease_expired")]
    assert attached.ending is not None
    assert leased.ending is None


async def test_all_pages_are_listed(cluster: FakeCluster, api: Api) -> None:
    """A client that starts its watch late sees all of its pods."""
    for number in range(1203):
        cluster.pods[f"p{number}"] = {"metadata": {"name": f"p{number}", "labels": {naming.CLIENT: "c1"}}, "status": {}}
    watch = PodWatch(api, PODS, naming.selector(client="c1"), Roster(asyncio.get_running_loop().time))
    last = watch.roster.expect("p999")
    task = asyncio.create_task(watch.run())
    await last.wait(seen)
    task.cancel()
    assert cluster.count("GET", "continue") == 2
