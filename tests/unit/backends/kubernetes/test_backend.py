"""Create, delete, list, watch and close on a fake API server, with scripted daemons: every step may fail, none may leak."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from sandlot import errors
from sandlot.backends.base import Gone, Grant
from sandlot.backends.kubernetes import naming
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.backend import KubernetesBackend
from sandlot.backends.kubernetes.links.registrar import Secrets
from sandlot.backends.kubernetes.options import ClusterOptions
from sandlot.backends.kubernetes.starting import PULLED_S
from sandlot.backends.kubernetes.watching import Tracked
from sandlot.connection import Connection
from sandlot.janitor import Deletion
from sandlot.policy import Settings
from sandlot.provider import Provider
from sandlot.spec import Spec
from sandlot.testing.fake import FakeBackend
from tests.unit.backends.kubernetes.fake_api import FakeCluster, refusal

pytestmark = pytest.mark.looptime(noop_cycles=300)  # both ends of real sockets are here: bytes may be on their way

SPEC = Spec(image="r/app:1")
OPTIONS = ClusterOptions(daemon_image="r/sandlotd:1")


class Images:
    """References as they stand."""

    async def start(self, api: Api) -> None: ...

    async def daemon(self) -> str:
        return "r/sandlotd:1"

    async def reference(self, spec: Spec) -> str:
        return spec.image

    async def aclose(self) -> None: ...


class Links:
    """A link comes as soon as the pod's container runs; behind it is a daemon of the fake backend's."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.daemons = FakeBackend()
        self.failure: errors.SandlotError | None = None
        self.opened: list[Connection] = []
        self.tracked: dict[str, Tracked] = {}

    async def open(self, api: Api, options: ClusterOptions) -> Links:
        return self

    def register(self, name: str) -> Mapping[str, str]:
        if name in self.names:
            raise ValueError(name)
        self.names.add(name)
        return {"SANDLOT_ENROL": "secret"}

    async def connect(self, pod: Tracked) -> Connection:
        self.tracked[pod.name] = pod
        await pod.wait(lambda one: "running" in one.times_s)
        if self.failure is not None:
            raise self.failure
        connection = (await self.daemons.create(pod.name, SPEC, Grant())).connection
        self.opened.append(connection)
        return connection

    async def reconnect(self, pod: Tracked) -> Connection:
        if self.failure is not None:
            raise self.failure
        return await self.daemons.reopen(pod.name)

    def secrets_of(self, name: str) -> Secrets:
        return Secrets(name, b"k" * 32, None, b"r" * 32, b"b" * 8)

    def forget(self, name: str) -> None:
        self.names.discard(name)

    async def aclose(self) -> None: ...


class World:
    """A cluster, a backend on it, and a node that runs what is posted unless told otherwise."""

    def __init__(self, cluster: FakeCluster, options: ClusterOptions = OPTIONS) -> None:
        self.cluster = cluster
        self.links = Links()
        self.backend = KubernetesBackend(cluster.load, Images(), options, opens=self.links.open)
        self.runs = True

    async def node(self) -> None:
        """Run pods as they come."""
        done: set[str] = set()
        while True:
            for name, pod in list(self.cluster.pods.items()):
                if self.runs and pod["metadata"]["uid"] not in done:
                    done.add(pod["metadata"]["uid"])
                    await self.cluster.run(name)
            await asyncio.sleep(0.05)

    def left(self) -> tuple[int, int]:
        """Pods and Leases that exist."""
        return len(self.cluster.pods), len(self.cluster.leases)


@asynccontextmanager
async def world(options: ClusterOptions = OPTIONS) -> AsyncIterator[World]:
    """Not a fixture: time is virtual only in the test itself."""
    async with FakeCluster() as cluster:
        made = World(cluster, options)
        node = asyncio.create_task(made.node())
        await made.backend.start()
        try:
            yield made
        finally:
            await made.backend.aclose()
            node.cancel()
            for connection in made.links.opened:
                await connection.aclose()
            for name in made.links.daemons.existing:
                made.links.daemons.kill(name)
            await asyncio.sleep(0.1)  # sockets are closed in the loop's next turns


async def until(condition: Callable[[], bool]) -> None:
    """What the cluster does is nobody's to be told of but by its API."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_life_of_a_sandbox_costs_two_writes() -> None:
    """POST and DELETE, and a link in between; the times of its parts are told."""
    async with world() as w:
        opened = await w.backend.create("box", SPEC, Grant())
        assert opened.connection.welcome.name == "box"
        assert set(opened.spans) == {"request", "schedule", "start"}
        pod = w.cluster.pods["box"]
        assert pod["metadata"]["ownerReferences"][0]["name"] == naming.client_lease(w.backend.client)
        assert {"name": "SANDLOT_GRACE_MS", "value": "300000"} in pod["spec"]["containers"][0]["env"]
        assert await w.backend.delete("box") is True
        assert await w.backend.delete("box") is False
        assert (w.cluster.count("POST", "pods"), w.cluster.count("DELETE", "pods"), w.cluster.pods) == (1, 1, {})
        assert w.links.names == set()
    assert w.left() == (0, 0)


@pytest.mark.parametrize("after", [True, False])
@pytest.mark.parametrize("status", [500, 504, 0])
async def test_post_whose_answer_is_lost_makes_one_pod(status: int, after: bool) -> None:
    """Whether it was done before the answer was lost or not, it is asked for again and what exists is known as ours."""
    async with world() as w:
        troubles = iter([True, True])

        async def lose(request: web.Request) -> web.StreamResponse | None:
            if next(troubles, None) is None:
                return None
            if after and "box" not in w.cluster.pods:
                await w.cluster._post(request)
            if status == 0:
                assert request.transport is not None
                request.transport.close()
            return await refusal(status or 500)(request)

        with w.cluster.trouble("POST", "pods", lose):
            await w.backend.create("box", SPEC, Grant())
        assert set(w.cluster.pods) == {"box"}


async def test_pod_of_somebody_else_is_not_taken_for_ours() -> None:
    """A name that is taken is told as such, and nothing of it is deleted or remembered."""
    async with world() as w:
        w.cluster.pods["box"] = {"metadata": {"name": "box", "uid": "x", "labels": {"app": "db"}}, "spec": {}, "status": {}}
        with pytest.raises(errors.SandboxFileExists):
            await w.backend.create("box", SPEC, Grant())
        assert await w.backend.delete("box") is False
        assert (set(w.cluster.pods), w.links.names) == ({"box"}, set())
        del w.cluster.pods["box"]


async def test_throttling_is_the_providers_to_obey() -> None:
    """429 at the first asking: nothing was made, and the time to come back is told."""
    async with world() as w:
        later = refusal(429, **{"Retry-After": "3"})
        with w.cluster.trouble("POST", "pods", later), pytest.raises(errors.Throttled) as raised:
            await w.backend.create("box", SPEC, Grant())
        assert (raised.value.retry_after_s, w.cluster.count("POST", "pods")) == (3, 1)


@pytest.mark.parametrize("then", [429, 403, 422])
async def test_refusal_after_a_lost_answer_is_no_certainty(then: int) -> None:
    """The lost request may still have made the pod: the error says that this is not known, so that it is looked for."""
    async with world() as w:
        first = iter([True])

        async def lose(request: web.Request) -> web.StreamResponse | None:
            return await refusal(500 if next(first, None) else then)(request)

        with w.cluster.trouble("POST", "pods", lose), pytest.raises(errors.Infrastructure) as raised:
            await w.backend.create("box", SPEC, Grant())
        assert not isinstance(raised.value, (errors.Throttled, errors.Capacity))


@pytest.mark.parametrize(
    ("status", "kind", "within_s"),
    [
        ({"containerStatuses": [{"name": "task", "state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}]},
         errors.ImageNotFound, 1),
        ({"containerStatuses": [{"name": "task", "state": {"waiting": {"reason": "ErrImagePull", "message": "refused"}}}]},
         errors.NotReady, 61),
        ({"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no cpu"}]},
         errors.Capacity, 16),
        ({"phase": "Failed", "reason": "OutOfpods"}, errors.Capacity, 1),
        ({"phase": "Failed", "reason": "Evicted"}, errors.SandboxGone, 1),
    ],
)  # fmt: skip
async def test_failures_end_a_create_as_soon_as_they_are_certain(
    status: dict[str, Any], kind: type[errors.SandlotError], within_s: float
) -> None:
    """Not after a time-out; the sandbox is named."""
    async with world() as w:
        w.runs = False
        creating = asyncio.create_task(w.backend.create("box", SPEC, Grant()))
        await until(lambda: "box" in w.cluster.pods)
        await w.cluster.set_status("box", **status)
        began = asyncio.get_running_loop().time()
        with pytest.raises(kind, match=r"^box: "):
            await creating
        assert within_s / 2 - 1 <= asyncio.get_running_loop().time() - began <= within_s


async def test_trouble_that_passes_is_none() -> None:
    """A place was found, or the registry came back, within the client's patience."""
    async with world() as w:
        w.runs = False
        creating = asyncio.create_task(w.backend.create("box", SPEC, Grant()))
        await until(lambda: "box" in w.cluster.pods)
        nowhere = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no cpu"}
        await w.cluster.set_status("box", conditions=[nowhere])
        await asyncio.sleep(14)
        waiting = {"name": "task", "state": {"waiting": {"reason": "ErrImagePull", "message": "503"}}}
        await w.cluster.set_status("box", node="n1", conditions=[], containerStatuses=[waiting])
        await asyncio.sleep(50)
        w.runs = True
        await creating


async def test_stuck_pod_is_asked_for_its_events() -> None:
    """What a node cannot do is often told nowhere else."""
    async with world() as w:
        w.runs = False
        creating = asyncio.create_task(w.backend.create("box", SPEC, Grant()))
        await until(lambda: "box" in w.cluster.pods)
        about = {"uid": w.cluster.pods["box"]["metadata"]["uid"]}
        said = {"type": "Warning", "reason": "FailedCreatePodSandBox", "message": 'no runtime for "gvisor"'}
        w.cluster.events = [{**said, "involvedObject": about}]
        await w.cluster.set_status("box", node="n1")
        with pytest.raises(errors.Unsupported, match="gvisor"):
            await creating


async def test_caller_that_goes_away_while_a_pull_is_asked_for_leaves_no_link_open() -> None:
    """The sandbox was there already, but nobody had it yet."""
    asked = asyncio.Event()

    async def never(request: web.Request) -> web.StreamResponse:
        asked.set()
        await asyncio.sleep(1000)
        return web.Response()

    async with world() as w:
        w.runs = False
        creating = asyncio.create_task(w.backend.create("box", SPEC, Grant()))
        await until(lambda: "box" in w.cluster.pods)
        await w.cluster.set_status("box", node="n1")
        await until(lambda: w.links.tracked["box"].node is not None)
        await asyncio.sleep(2 * PULLED_S)
        with w.cluster.trouble("GET", "events", never):
            await w.cluster.run("box")
            await asked.wait()
            creating.cancel()
            await asyncio.wait([creating])
        assert [connection.failure is not None for connection in w.links.opened] == [True]


async def test_what_failed_on_a_node_is_tried_elsewhere_next() -> None:
    """The next pod wishes for another node; one that starts there all the same clears its name."""

    def wishes() -> list[str]:
        affinity = w.cluster.pods["box"]["spec"].get("affinity", {}).get("nodeAffinity", {})
        terms = affinity.get("preferredDuringSchedulingIgnoredDuringExecution", ())
        return [node for term in terms for field in term["preference"]["matchFields"] for node in field["values"]]

    async with world() as w:
        w.runs = False
        creating = asyncio.create_task(w.backend.create("box", SPEC, Grant()))
        await until(lambda: "box" in w.cluster.pods)
        assert wishes() == []
        await w.cluster.set_status("box", node="n1", phase="Failed", reason="OutOfcpu")
        with pytest.raises(errors.Capacity):
            await creating
        await w.backend.delete("box")
        creating = asyncio.create_task(w.backend.create("box", SPEC, Grant()))
        await until(lambda: "box" in w.cluster.pods)
        assert wishes() == ["n1"]
        await w.cluster.run("box")
        await creating


async def test_link_that_breaks_with_its_pod_tells_the_pods_reason() -> None:
    """The status is a moment behind the link."""
    async with world() as w:
        w.links.failure = errors.TransportLost("broke")
        creating = asyncio.create_task(w.backend.create("box", SPEC, Grant()))
        await until(lambda: "nodeName" in w.cluster.pods.get("box", {"spec": {}})["spec"])
        killed = {"name": "task", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
        await w.cluster.set_status("box", phase="Failed", containerStatuses=[killed])
        with pytest.raises(errors.SandboxGone) as raised:
            await creating
        assert raised.value.why == "oom"


@pytest.mark.parametrize("at_s", [0.0, 0.001, 0.01, 0.04, 0.06, 0.1, 0.2])
async def test_cancelled_create_leaves_no_link_open(at_s: float) -> None:
    """Whenever it happens; the pod is deleted by name afterwards."""
    async with world() as w:
        creating = asyncio.create_task(w.backend.create("box", SPEC, Grant()))
        await asyncio.sleep(at_s)
        creating.cancel()
        await asyncio.wait([creating])
        await w.backend.delete("box")
        if creating.cancelled():
            assert all(connection.failure is not None for connection in w.links.opened)
        assert w.links.names == set()


async def test_delete_is_tried_through_everything() -> None:
    """500, 429 and a cut for a while; then it is gone."""
    async with world() as w:
        await w.backend.create("box", SPEC, Grant())
        answers = iter([500, 429, 503, 504])

        async def fail(request: web.Request) -> web.StreamResponse | None:
            status = next(answers, None)
            return None if status is None else await refusal(status)(request)

        with w.cluster.trouble("DELETE", "pods", fail):
            assert await w.backend.delete("box") is True
        assert w.cluster.pods == {}


async def test_delete_without_a_watch_asks_whether_it_is_gone() -> None:
    """The watch may just be broken."""
    async with world() as w:
        await w.backend.create("box", SPEC, Grant())
        with w.cluster.trouble("GET", "watch=1", refusal(503)):
            await w.cluster.cut()
            async with asyncio.timeout(20):
                assert await w.backend.delete("box") is True


async def test_graceful_delete_waits_for_the_node() -> None:
    """The node ends the processes first; the call returns when the object is gone."""
    async with world() as w:
        await w.backend.create("box", SPEC, Grant())
        deleting = asyncio.create_task(w.backend.delete("box", grace_s=2.5))
        await asyncio.sleep(2)
        assert not deleting.done()
        assert w.cluster.count("DELETE", "gracePeriodSeconds=3") == 1
        await w.cluster.remove("pods", "box")
        assert await deleting is True


async def test_leased_sandbox_lives_under_a_lease_of_its_own() -> None:
    """Listed with what it has left, renewed, left alone by the end of its client, deleted by any other."""
    async with world() as w:
        opened = await w.backend.create("box", SPEC, Grant(owner="leased", lease_s=120))
        await w.backend.renew("box", 300)
        (info,) = await w.backend.list()
        assert (info.name, info.owner, info.state, info.image) == ("box", "leased", "running", "r/app:1")
        assert info.lease_left_s is not None
        assert 298 <= info.lease_left_s <= 300
        env = {one["name"] for one in w.cluster.pods["box"]["spec"]["containers"][0]["env"]}
        assert not {"SANDLOT_LEASE_MS", "SANDLOT_GRACE_MS"} & env
        await w.backend.aclose()
        assert w.left() == (1, 1)
        other = KubernetesBackend(w.cluster.load, Images(), OPTIONS, opens=w.links.open)
        await other.start()
        assert await other.delete("box") is True
        await other.aclose()
        assert w.left() == (0, 0)
        await opened.connection.aclose()


async def test_end_is_told_to_watchers_and_to_who_would_reopen() -> None:
    """With why."""
    async with world() as w:
        await w.backend.create("box", SPEC, Grant())
        watching = asyncio.ensure_future(anext(aiter(w.backend.watch())))
        await asyncio.sleep(0)
        await w.cluster.set_status("box", phase="Failed", reason="Evicted", message="disk")
        assert await watching == Gone("box", "evicted", "Evicted: disk")
        with pytest.raises(errors.SandboxGone) as raised:
            await w.backend.reopen("box")
        assert raised.value.why == "evicted"


async def test_sandbox_of_another_client_cannot_be_reopened() -> None:
    """An attached one's secret is with that client; one that does not exist is gone."""
    async with world() as w:
        await w.backend.create("box", SPEC, Grant())
        other = KubernetesBackend(w.cluster.load, Images(), OPTIONS, opens=Links().open)
        await other.start()
        with pytest.raises(errors.Unsupported):
            await other.reopen("box")
        with pytest.raises(errors.SandboxGone):
            await other.reopen("nosuch")
        await other.aclose()
        assert w.left() == (1, 1)
        await w.backend.delete("box")


async def test_leased_sandbox_is_used_by_one_process_at_a_time(state_home: Path) -> None:
    """While its maker has it nobody else links to it; elsewhere, where its secret is not, nobody can."""
    async with world() as w:
        await w.backend.create("box", SPEC, Grant(owner="leased", lease_s=60))
        (kept,) = state_home.rglob("box")
        assert kept.stat().st_mode & 0o777 == 0o600
        other = KubernetesBackend(w.cluster.load, Images(), OPTIONS, opens=Links().open)
        await other.start()
        with pytest.raises(errors.Closed, match="another process"):
            await other.reopen("box")
        kept.rename(state_home / "elsewhere")
        with pytest.raises(errors.Unsupported, match="another user, or on another machine"):
            await other.reopen("box")
        (state_home / "elsewhere").rename(kept)
        await other.aclose()
        await w.backend.delete("box")
        assert list(state_home.rglob("box")) == []


async def test_leased_sandbox_whose_secret_cannot_be_kept_is_not_made(state_home: Path) -> None:
    """Only this process could link to it; what is wrong is said, and its link is closed."""
    (state_home / "sandlot").write_text("a file where a directory is needed")
    async with world() as w:
        with pytest.raises(errors.WriteFailed):
            await w.backend.create("box", SPEC, Grant(owner="leased", lease_s=60))
        assert w.links.opened[-1].failure is not None
        await w.backend.delete("box")
        assert w.left() == (0, 1)


async def test_closing_deletes_what_is_attached_even_if_nobody_else_did() -> None:
    """In a few collections, until none is left, and the Lease last."""
    async with world() as w:
        await asyncio.gather(*(w.backend.create(f"box-{n}", SPEC, Grant()) for n in range(30)))
        await w.backend.aclose()
        assert w.left() == (0, 0)
        assert w.cluster.count("DELETE", "labelSelector") <= naming.SHARDS
        await w.backend.aclose()


async def test_closing_against_a_dead_server_says_what_is_left() -> None:
    """And does not hang; others delete it when the Lease has run out."""
    async with world() as w:
        await w.backend.create("box", SPEC, Grant())
        with w.cluster.trouble("GET", "pods", refusal(503)), pytest.raises(errors.CleanupFailed, match="lease") as raised:
            await w.backend.aclose()
        assert naming.CLIENT in raised.value.left[0]
        w.cluster.pods.clear()
        w.cluster.leases.clear()


async def test_start_that_fails_leaves_nothing() -> None:
    """No rights for Leases: typed, and no task or connection stays."""
    async with FakeCluster() as cluster:
        backend = KubernetesBackend(cluster.load, Images(), OPTIONS, opens=Links().open)
        with cluster.trouble("POST", "leases", refusal(403, "Forbidden", "no")), pytest.raises(errors.Denied):
            await backend.start()
        await backend.aclose()
        assert len(asyncio.all_tasks()) <= 4  # the test's own and the server's
        with pytest.raises(errors.Closed):
            await backend.list()


async def test_client_taken_for_dead_goes_on_with_a_new_lease() -> None:
    """What it had is told as gone; what it makes afterwards belongs to the new Lease."""
    async with world() as w:
        await w.backend.create("box", SPEC, Grant())
        watching = asyncio.ensure_future(anext(aiter(w.backend.watch())))
        await asyncio.sleep(0)
        name = naming.client_lease(w.backend.client)
        before = w.cluster.leases[name]["metadata"]["uid"]
        await w.cluster.remove("leases", name)
        assert (await watching).why == "lease_expired"
        await until(lambda: name in w.cluster.leases)
        await w.backend.create("new", SPEC, Grant())
        owner = w.cluster.pods["new"]["metadata"]["ownerReferences"][0]["uid"]
        assert owner == w.cluster.leases[name]["metadata"]["uid"] != before


# --- behind a provider --------------------------------------------------------------------------------------------------
async def test_provider_makes_uses_and_leaves_nothing() -> None:
    """The whole way, 50 at once, with 30 % of all writes failing in either way."""
    async with FakeCluster() as cluster:
        w = World(cluster)
        node = asyncio.create_task(w.node())
        counter = iter(range(10_000))

        async def flaky(request: web.Request) -> web.StreamResponse | None:
            turn = next(counter) % 10
            if turn == 0:
                return await refusal(503)(request)
            if turn == 1:
                return await refusal(429, **{"Retry-After": "1"})(request)
            if turn == 2 and request.method == "POST":
                await w.cluster._post(request)
                return await refusal(500)(request)
            return None

        settings = replace(Settings(), deletion=Deletion(clear_from=1000))
        with cluster.trouble("POST", "pods", flaky), cluster.trouble("DELETE", "pods", flaky):
            async with Provider(w.backend, settings) as provider:
                boxes = await asyncio.gather(*(provider.create(SPEC) for _ in range(50)))
                assert len({box.name for box in boxes}) == 50
                assert len(cluster.pods) == 50
        node.cancel()
        assert provider.closing is not None
        assert provider.closing.left == ()
        assert w.left() == (0, 0)
