"""The test cluster is a real Kubernetes: what other tests take for granted about it."""

from collections.abc import Iterator

import pytest

from cluster import Cluster, processes
from cluster.api import Api, ApiError
from cluster.layout import REAL_NODE
from tests.cluster import pods
from tests.cluster.conftest import TestImages


@pytest.fixture
def api(cluster: Cluster) -> Iterator[Api]:
    with cluster.api() as one:
        yield one


@pytest.fixture
def space(api: Api) -> Iterator[str]:
    with pods.namespace(api) as name:
        yield name


def test_a_plain_pod_is_ready_on_the_real_node(cluster: Cluster, api: Api, space: str, test_images: TestImages) -> None:
    """Scheduled away from the fake nodes, pulled from the registry, given an address of the cluster's, and really run."""
    pod = pods.run(api, space, "plain", image=test_images.busybox)
    assert pod["spec"]["nodeName"] == REAL_NODE
    assert pod["status"]["podIP"].startswith("198.18.")
    image_id = pod["status"]["containerStatuses"][0]["imageID"]
    assert image_id.startswith(f"{cluster.registry}/tests/busybox@sha256:")
    names = sorted(one.name for one in cluster.containers() if one.pod_uid == pod["metadata"]["uid"])
    assert names == ["", "main"]


def test_pods_outlive_nothing(cluster: Cluster, api: Api, space: str, test_images: TestImages) -> None:
    """After a pod's deletion neither containerd nor the kernel knows anything of it."""
    pod = pods.run(api, space, "short", image=test_images.busybox)
    uid = pod["metadata"]["uid"]
    running = [one.pid for one in cluster.containers() if one.pod_uid == uid]
    started = [processes.identify(pid) for pid in running]
    api.delete(f"/api/v1/namespaces/{space}/pods/short")
    pods.until(lambda: not [one for one in cluster.containers() if one.pod_uid == uid], "no container of the pod")
    assert len(started) == 2
    assert not [one for one in started if one is not None and one.alive()]


def test_an_image_volume_holds_the_image(api: Api, space: str, test_images: TestImages) -> None:
    """A program out of one image runs inside another."""
    volume = {"name": "tools", "image": {"reference": test_images.tool}}
    pods.run(
        api,
        space,
        "mounted",
        image=test_images.busybox,
        command=["sh", "-c", "/tools/tool && ! touch /tools/new 2>/dev/null && exec sleep 100000"],
        container={"volumeMounts": [{"name": "tools", "mountPath": "/tools"}]},
        volumes=[volume],
    )
    assert pods.log(api, space, "mounted") == "tool works\n"


def test_root_of_a_pod_without_host_users_is_not_root(cluster: Cluster, api: Api, space: str, test_images: TestImages) -> None:
    """Inside it is user 0, and the kernel has it as an unprivileged one."""
    pod = pods.run(
        api, space, "mapped", image=test_images.busybox, command=["sh", "-c", "id -u; exec sleep 100000"], hostUsers=False
    )
    assert pods.log(api, space, "mapped") == "0\n"
    uid = pod["metadata"]["uid"]
    first = next(one.pid for one in cluster.containers() if one.pod_uid == uid and one.name == "main")
    with open(f"/proc/{first}/status", encoding="utf-8") as status:
        outside = next(line.split()[1] for line in status if line.startswith("Uid:"))
    assert int(outside) >= 65536


def test_pods_reach_each_other_and_this_machine(cluster: Cluster, api: Api, space: str, test_images: TestImages) -> None:
    """By the pod's address, and by the bridge's own from inside."""
    serve = ["sh", "-c", "while true; do echo hello | nc -l -p 8000; done"]
    served = pods.run(api, space, "server", image=test_images.busybox, command=serve)
    for name, address, port in (
        ("peer", served["status"]["podIP"], 8000),
        ("machine", cluster.gateway, cluster.layout.kubelet_port),
    ):
        reach = f"until nc -z {address} {port} || nc {address} {port} </dev/null; do sleep 0.1; done; exec sleep 100000"
        pods.run(api, space, name, image=test_images.busybox, command=["sh", "-c", f"{reach}"])


def test_an_ordinary_pod_does_not_go_to_a_fake_node(api: Api, space: str, test_images: TestImages) -> None:
    """Asking for one is not enough, it has to tolerate it."""
    container = {"name": "main", "image": test_images.busybox}
    spec = {"nodeSelector": {"type": "kwok"}, "containers": [container]}
    api.post(f"/api/v1/namespaces/{space}/pods", {"metadata": {"name": "stray"}, "spec": spec})

    def unschedulable() -> bool:
        conditions = api.get(f"/api/v1/namespaces/{space}/pods/stray")["status"].get("conditions", [])
        return any(one.get("reason") == "Unschedulable" for one in conditions)

    pods.until(unschedulable, "the scheduler's refusal")


def test_each_pod_of_a_fake_node_has_a_loopback_address_of_its_own(cluster: Cluster, api: Api, space: str) -> None:
    """So that one process of this machine can answer for all of them and tell them apart."""
    found = [pods.run(api, space, f"fake-{index}", image="none", **pods.on_fake_node()) for index in range(3)]
    addresses = {pod["status"]["podIP"] for pod in found}
    assert len(addresses) == 3
    prefix = str(cluster.layout.fake_pods.network_address).rsplit(".", 2)[0]
    assert all(address.startswith(f"{prefix}.") for address in addresses)


def test_a_paused_api_server_answers_again(cluster: Cluster, api: Api) -> None:
    """Paused it keeps connections and says nothing; resumed it goes on."""
    layout = cluster.layout
    with Api(layout.server, layout.pki, timeout_s=0.5) as impatient, cluster.paused("apiserver"), pytest.raises(TimeoutError):
        impatient.get("/version")
    assert api.get("/version")["gitVersion"].startswith("v1.")


def test_containers_outlive_containerd_and_the_kubelet(cluster: Cluster, api: Api, space: str, test_images: TestImages) -> None:
    """Killed and started again, both find the pod as it was."""
    pod = pods.run(api, space, "stays", image=test_images.busybox)
    uid = pod["metadata"]["uid"]
    before = [one for one in cluster.containers() if one.pod_uid == uid]
    for component in ("kubelet", "containerd"):
        cluster.kill(component)
        assert not cluster.alive(component)
    assert [one for one in cluster.containers() if one.pod_uid == uid] == before
    for component in ("containerd", "kubelet"):
        cluster.start(component)
    again = pods.run(api, space, "next", image=test_images.busybox)
    assert again["spec"]["nodeName"] == REAL_NODE
    after = pods.ready(api, space, "stays")
    assert after["status"]["containerStatuses"][0]["restartCount"] == 0
    assert [one for one in cluster.containers() if one.pod_uid == uid] == before


def test_a_stranger_is_refused(cluster: Cluster) -> None:
    """The scheduler's certificate is no administrator's."""
    layout = cluster.layout
    with Api(layout.server, layout.pki, "scheduler") as weak, pytest.raises(ApiError, match="403"):
        weak.get("/api/v1/namespaces/kube-system/secrets")
