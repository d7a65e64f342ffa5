"""The Kubernetes backend on a real cluster: failures are typed within seconds, and nothing is left whoever ends."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import sandlot
from cluster import Cluster
from sandlot.backends.kubernetes import ClusterOptions
from tests.cluster import pods
from tests.cluster.conftest import TestImages

SOON_S = 120.0  # recognised from status and events, not by a time-out: those of creating are 900 s


@pytest.fixture
def space(cluster: Cluster) -> Iterator[str]:
    """A namespace of the test's own."""
    with pods.lasting_namespace(cluster) as name:
        yield name


@pytest.fixture
def options(space: str) -> ClusterOptions:
    return ClusterOptions(
        namespace=space,
        connect="dial-in",
        delivery="image",
        unschedulable_s=3,
        scheduler_silence_s=100,  # the events of a pod that waits in silence have been looked for twice by then
        pull_patience_s=5,
        lease_s=6,
        renew_s=2,
    )


@pytest.fixture
async def provider(cluster: Cluster, options: ClusterOptions) -> AsyncIterator[sandlot.Provider]:
    """Tries each create once; when the test ends it must leave nothing."""
    settings = sandlot.Settings(attempts=1)
    async with sandlot.kubernetes(settings, kubeconfig=cluster.kubeconfig, registry=registry(cluster), options=options) as one:
        yield one
        closing = await one.aclose()
    assert closing.left == ()
    assert left(cluster, options.namespace) == []


def registry(cluster: Cluster) -> str:
    return f"{cluster.registry}/sandlot"


def left(cluster: Cluster, space: str | None) -> list[str]:
    """Pods and Leases, counted from outside."""
    with cluster.api() as api:
        paths = (f"/api/v1/namespaces/{space}/pods", f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases")
        return [one["metadata"]["name"] for path in paths for one in api.get(path)["items"]]


def spec(cluster: Cluster, image: str, **fields: object) -> sandlot.Spec:
    """On the real node."""
    pod = sandlot.PodOptions(node_selector={"kubernetes.io/hostname": cluster.real_node})
    return sandlot.Spec(image=image, **{"pod": pod, **fields})  # type: ignore[arg-type]


async def test_missing_image_is_named(cluster: Cluster, provider: sandlot.Provider) -> None:
    """With the registry's words, and not retriable."""
    async with asyncio.timeout(SOON_S):
        with pytest.raises(sandlot.ImageNotFound, match="no/such:image"):
            await provider.create(spec(cluster, f"{cluster.registry}/no/such:image"))


async def test_registry_that_is_down_is_infrastructure(cluster: Cluster, provider: sandlot.Provider) -> None:
    """It may come back, so it is tried for the client's patience and then retriable."""
    async with asyncio.timeout(SOON_S):
        with pytest.raises(sandlot.NotReady, match="could not be pulled") as raised:
            await provider.create(spec(cluster, "127.0.0.1:9/some:image"))
    assert raised.value.retriable


async def test_no_place_is_capacity(cluster: Cluster, provider: sandlot.Provider, test_images: TestImages) -> None:
    """With the scheduler's words."""
    wanted = sandlot.PodOptions(node_selector={"no": "such-node"})
    async with asyncio.timeout(SOON_S):
        with pytest.raises(sandlot.Capacity, match="node"):
            await provider.create(spec(cluster, test_images.busybox, pod=wanted))


CLAIM = [{"name": "gpu", "resourceClaimTemplateName": "no-such-template"}]


@pytest.mark.parametrize(
    ("wanted", "kind", "said"),
    [
        (sandlot.PodOptions(extra={"nodeName": "no-such-node"}), sandlot.BadRequest, "no node 'no-such-node'"),
        (sandlot.PodOptions(extra={"schedulingGates": [{"name": "x.example/q"}]}), sandlot.Capacity, "x.example/q"),
        (sandlot.PodOptions(scheduler="no-such-scheduler"), sandlot.NotReady, "'no-such-scheduler' has said nothing"),
        (sandlot.PodOptions(extra={"resourceClaims": CLAIM}), sandlot.BadRequest, "no-such-template"),
    ],
    ids=["node", "gates", "scheduler", "claim"],
)
async def test_pod_that_waits_in_silence_is_told_why(
    cluster: Cluster,
    provider: sandlot.Provider,
    test_images: TestImages,
    wanted: sandlot.PodOptions,
    kind: type[sandlot.SandlotError],
    said: str,
) -> None:
    """No scheduler and no node ever looks at it, and its status says nothing."""
    async with asyncio.timeout(SOON_S):
        with pytest.raises(kind, match=said):
            await provider.create(spec(cluster, test_images.busybox, pod=wanted))


async def test_node_that_has_no_room_is_capacity(cluster: Cluster, provider: sandlot.Provider, test_images: TestImages) -> None:
    """The node refuses what was put on it: OutOfcpu."""
    wanted = sandlot.PodOptions(requests={"cpu": 4000}, extra={"nodeName": cluster.real_node})
    async with asyncio.timeout(SOON_S):
        with pytest.raises(sandlot.Capacity, match="OutOfcpu"):
            await provider.create(spec(cluster, test_images.busybox, cpu=4000, pod=wanted))


async def test_unknown_field_is_the_callers_fault(
    cluster: Cluster, provider: sandlot.Provider, test_images: TestImages
) -> None:
    """The API server checks strictly what `extra` adds."""
    wanted = sandlot.PodOptions(extra={"nosuchField": 1})
    with pytest.raises(sandlot.BadRequest, match="nosuchField"):
        await provider.create(spec(cluster, test_images.busybox, pod=wanted))


async def test_end_of_a_pod_is_told_with_its_reason(
    cluster: Cluster, provider: sandlot.Provider, test_images: TestImages, space: str
) -> None:
    """Somebody deletes it: the next command says so, and nothing hangs."""
    box = await provider.create(spec(cluster, test_images.busybox))
    departures = provider.departures()
    waiting = asyncio.ensure_future(anext(departures))
    await asyncio.sleep(0)
    with cluster.api() as api:
        api.delete(f"/api/v1/namespaces/{space}/pods/{box.name}", {"gracePeriodSeconds": 0})
    async with asyncio.timeout(SOON_S):
        assert (await waiting).why == "killed"
        with pytest.raises(sandlot.SandboxGone):
            await box.exec("true")
    await departures.aclose()  # type: ignore[attr-defined]


async def test_leased_sandbox_outlives_its_provider(cluster: Cluster, options: ClusterOptions, test_images: TestImages) -> None:
    """Until its lease has run out: then any other client deletes it."""
    arguments = {"kubeconfig": cluster.kubeconfig, "registry": registry(cluster), "options": options}
    async with sandlot.kubernetes(**arguments) as first:  # type: ignore[arg-type]
        box = await first.create(spec(cluster, test_images.busybox), owner="leased", lease_s=120)
        await first.renew(box.name, 5)
    assert first.closing is not None
    assert first.closing.kept == (box.name,)
    assert left(cluster, options.namespace) == [box.name, f"sandlot-lease-{box.name}"]
    async with sandlot.kubernetes(**arguments) as second:  # type: ignore[arg-type]
        async with asyncio.timeout(SOON_S):
            while await second.list():  # noqa: ASYNC110 - what another client's reaper does is nobody's to be told of
                await asyncio.sleep(0.5)
    assert left(cluster, options.namespace) == []


async def test_leased_sandbox_is_taken_over_by_another_process(
    cluster: Cluster, options: ClusterOptions, test_images: TestImages, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its files and its running commands; who deletes it at last need not be who made it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    arguments = {"kubeconfig": cluster.kubeconfig, "registry": registry(cluster), "options": options}
    async with sandlot.kubernetes(**arguments) as first:  # type: ignore[arg-type]
        box = await first.create(spec(cluster, test_images.busybox), owner="leased", lease_s=300)
        await box.exec("echo kept > /file; sleep 98765 &", check=True)
    async with sandlot.kubernetes(**arguments) as second:  # type: ignore[arg-type]
        again = await second.attach(box.name)
        assert (await again.exec("cat /file")).stdout == "kept\n"
        assert sum(one.name == "sleep" for one in await again.processes()) == 1
        await second.delete(box.name)
    assert left(cluster, options.namespace) == []


CLIENT = """
import asyncio, sys, sandlot
from sandlot.backends.kubernetes import ClusterOptions

async def main(kubeconfig, registry, space, node, image):
    options = ClusterOptions(namespace=space, connect="dial-in", delivery="image", lease_s=6, renew_s=2)
    pod = sandlot.PodOptions(node_selector={"kubernetes.io/hostname": node})
    async with sandlot.kubernetes(kubeconfig=kubeconfig, registry=registry, options=options) as provider:
        await asyncio.gather(*(provider.create(sandlot.Spec(image=image, pod=pod)) for _ in range(5)))
        print("ready", flush=True)
        creating = [asyncio.ensure_future(provider.create(sandlot.Spec(image=image, pod=pod))) for _ in range(5)]
        await asyncio.sleep(3600)

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
async def test_nothing_is_left_of_a_client_that_ends(
    cluster: Cluster, provider: sandlot.Provider, test_images: TestImages, space: str, tmp_path: Path, ending: signal.Signals
) -> None:
    """Interrupted, it deletes all itself; killed, this other client does, and keeps its own."""
    mine = await provider.create(spec(cluster, test_images.busybox))
    script = tmp_path / "client.py"
    script.write_text(textwrap.dedent(CLIENT))
    arguments = [str(cluster.kubeconfig), registry(cluster), space, cluster.real_node, test_images.busybox]
    client = await asyncio.create_subprocess_exec(sys.executable, str(script), *arguments, stdout=asyncio.subprocess.PIPE)
    assert client.stdout is not None
    async with asyncio.timeout(180):
        assert await client.stdout.readline() == b"ready\n"
    assert len(left(cluster, space)) >= 8
    client.send_signal(ending)
    await client.wait()
    own = {mine.name, f"sandlot-client-{client_of(provider)}"}
    async with asyncio.timeout(120):
        while set(left(cluster, space)) != own:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.5)
    assert (await mine.exec("echo mine")).stdout == "mine\n"


def client_of(provider: sandlot.Provider) -> str:
    """Its id in the cluster."""
    client: str = provider.backend.client  # type: ignore[attr-defined]
    return client


def test_statuses_of_the_cluster_are_those_that_are_recorded(cluster: Cluster) -> None:
    """The documents that unit tests read are of the version that runs here, so that they are made anew with a newer one."""
    recorded = json.loads((Path(__file__).parents[1] / "unit/backends/kubernetes/statuses.json").read_text())
    with cluster.api() as api:
        minor = api.get("/version")["minor"]
    assert (minor, len(recorded)) == ("36", 24)
