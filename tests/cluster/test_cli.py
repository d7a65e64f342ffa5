"""The command line on a cluster, with the rights that `sandlot manifests` grants and no others."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster
from sandlot.backends.kubernetes.manifests import CLIENT, REAPER
from tests.cluster import pods
from tests.cluster.applying import Applied, applied
from tests.images.build import image

SANDLOT = [sys.executable, "-m", "sandlot.cli.main"]
OLD = "2001-01-01T00:00:00.000000Z"
NEW = "2100-01-01T00:00:00.000000Z"


class Seeded:
    """A namespace with leases and pods as clients leave them."""

    def __init__(self, cluster: Cluster, api: Any, space: str) -> None:
        self.space, self._api, self._cluster = space, api, cluster

    def lease(self, name: str, kind: str, client: str, renewed: str) -> None:
        labels = {"sandlot.dev/kind": kind, "sandlot.dev/client": client}
        spec = {"renewTime": renewed, "acquireTime": OLD, "leaseDurationSeconds": 60, "holderIdentity": f"host/{client}"}
        body = {"metadata": {"name": name, "labels": labels}, "spec": spec}
        self._api.post(f"/apis/coordination.k8s.io/v1/namespaces/{self.space}/leases", body)

    def pod(self, name: str, client: str, owner: str = "attached") -> None:
        labels = {"sandlot.dev/kind": "sandbox", "sandlot.dev/client": client, "sandlot.dev/owner": owner}
        labels["sandlot.dev/shard"] = "0"
        spec = {"containers": [{"name": "task", "image": "none"}], "nodeSelector": {"no": "where"}}
        self._api.post(f"/api/v1/namespaces/{self.space}/pods", {"metadata": {"name": name, "labels": labels}, "spec": spec})

    def names(self) -> list[str]:
        return sorted(one["metadata"]["name"] for one in self._api.get(f"/api/v1/namespaces/{self.space}/pods")["items"])

    def sandlot(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [*SANDLOT, *words, "--kubernetes", "--namespace", self.space]
        environ = {**os.environ, "KUBECONFIG": str(self._cluster.kubeconfig)}
        return subprocess.run(command, capture_output=True, text=True, env=environ, check=False, timeout=300)


@pytest.fixture
def seeded(cluster: Cluster) -> Any:
    """One client alive, one dead, a leased sandbox of each fate, and a pod of nobody."""
    with cluster.api() as api, pods.namespace(api) as space:
        made = Seeded(cluster, api, space)
        made.lease("sandlot-client-aaaaaaaa", "client", "aaaaaaaa", NEW)
        made.lease("sandlot-client-dddddddd", "client", "dddddddd", OLD)
        made.lease("sandlot-lease-kept", "sandbox-lease", "dddddddd", NEW)
        made.lease("sandlot-lease-over", "sandbox-lease", "aaaaaaaa", OLD)
        made.pod("alive", "aaaaaaaa")
        made.pod("dead", "dddddddd")
        made.pod("kept", "dddddddd", "leased")
        made.pod("over", "aaaaaaaa", "leased")
        made.pod("nobodys", "bbbbbbbb")
        yield made


def test_ps_tells_whose_they_are_and_what_gc_would_do(seeded: Seeded) -> None:
    """All clients' sandboxes, in JSON and for people."""
    found = json.loads(seeded.sandlot("ps", "--json").stdout)
    assert {one["info"]["name"]: one["fate"] for one in found["sandboxes"]} == {
        "alive": "stays", "dead": "expired", "kept": "stays", "over": "expired", "nobodys": "orphan",
    }  # fmt: skip
    assert {one["id"]: one["sandboxes"] for one in found["clients"]} == {"aaaaaaaa": 2, "dddddddd": 2}
    shown = seeded.sandlot("ps")
    assert "1 clients are dead and 3 sandboxes are left" in shown.stderr
    assert seeded.names() == ["alive", "dead", "kept", "nobodys", "over"]


def test_gc_removes_what_dead_clients_left_and_nothing_else(seeded: Seeded) -> None:
    """Of the living nothing; a leased one that is named at once."""
    done = seeded.sandlot("gc", "--json")
    assert done.returncode == 0, done.stderr
    removed = json.loads(done.stdout)
    assert removed["client"] == ["dddddddd"]
    assert sorted(removed["sandbox"]) == ["nobodys", "over"]
    assert seeded.names() == ["alive", "kept"]
    assert json.loads(seeded.sandlot("gc", "kept", "--json").stdout)["sandbox"] == ["kept"]
    refused = seeded.sandlot("gc", "alive")
    assert (refused.returncode, "no leased sandbox" in refused.stderr) == (4, True)
    assert seeded.names() == ["alive"]


@pytest.mark.parametrize("words", [("ps",), ("gc",), ("doctor",)])
def test_a_cluster_that_is_not_there_is_one_line(words: tuple[str, ...], tmp_path: Path) -> None:
    """No traceback; what to look at."""
    command = [*SANDLOT, *words, "--kubernetes", "--kubeconfig", str(tmp_path / "missing")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "missing" in done.stderr


# --- sandboxes, with least rights ---------------------------------------------------------------------------------------
def client(made: Applied, cluster: Cluster, verb: str) -> list[str]:
    """The beginning of a command as a client with nothing but its token."""
    where = ["--kubernetes", "--kubeconfig", str(made.kubeconfig(CLIENT)), "--registry", cluster.registry]
    return [*SANDLOT, verb, *where]


def left(cluster: Cluster, space: str) -> list[str]:
    """Pods and leases of a namespace, seen by the administrator."""
    paths = (f"/api/v1/namespaces/{space}/pods", f"/apis/coordination.k8s.io/v1/namespaces/{space}/leases")
    with cluster.api() as api:
        return [one["metadata"]["name"] for path in paths for one in api.get(path)["items"]]


async def test_exec_publishes_runs_and_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """An image of this machine; bytes, standard input and exit code are the command's own, and only its variables are there."""
    async with applied(cluster, tmp_path) as made:
        words = [
            "-e",
            "A=x y",
            "-i",
            "-w",
            "/tmp",
            image("busybox"),
            "--",
            "sh",
            "-c",
            "echo $A; pwd; cat; env; echo err >&2; exit 3",
        ]
        command = [*client(made, cluster, "exec"), *words]
        done = subprocess.run(command, input="in\n", capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 3, done.stderr
        assert done.stdout.startswith("x y\n/tmp\nin\n")
        assert done.stderr.endswith("err\n")
        assert "SANDLOT_" not in done.stdout
        assert "KUBERNETES_" not in done.stdout
        assert left(cluster, made.namespace) == []


@pytest.mark.parametrize(
    ("way", "delivery"), [("dial-out", "image"), ("dial-in", "init"), ("exec-bridge", "image"), ("dial-in", "image")]
)
async def test_every_way_works_with_its_own_rights(cluster: Cluster, tmp_path: Path, way: str, delivery: str) -> None:
    """Only links through the API server need another role."""
    async with applied(cluster, tmp_path, *(["--exec-bridge"] if way == "exec-bridge" else [])) as made:
        how = ["--connect", way, "--delivery", delivery, *(["--advertise", cluster.gateway] if way == "dial-out" else [])]
        command = [*client(made, cluster, "exec"), *how, image("busybox"), "--", "sh", "-c", "echo here; exit 7"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert (done.returncode, done.stdout) == (7, "here\n"), done.stderr
        assert left(cluster, made.namespace) == []


async def test_exec_of_the_host_image_is_refused_in_one_line(cluster: Cluster, tmp_path: Path) -> None:
    """It exists on no node; that is said before anything is made."""
    async with applied(cluster, tmp_path) as made:
        command = [*client(made, cluster, "exec"), "--json", "host", "--", "true"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 125
        assert json.loads(done.stderr.splitlines()[-1])["error"]["kind"] == "bad_request"
        assert left(cluster, made.namespace) == []


async def test_a_signal_ends_exec_and_leaves_nothing(cluster: Cluster, tmp_path: Path) -> None:
    """The pod and the lease are gone when the process is."""
    async with applied(cluster, tmp_path) as made:
        command = [*client(made, cluster, "exec"), image("busybox"), "--", "sh", "-c", "echo up; sleep 600"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"up\n"
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=120)
        assert process.returncode == 128 + signal.SIGTERM
        assert left(cluster, made.namespace) == []


async def test_shell_opens_on_a_terminal(cluster: Cluster, tmp_path: Path) -> None:
    """What is typed reaches the pod's shell, and its exit code comes back."""
    async with applied(cluster, tmp_path) as made:
        outer, inner = pty.openpty()
        command = [*client(made, cluster, "shell"), image("busybox")]
        with subprocess.Popen(command, stdin=inner, stdout=inner, stderr=subprocess.PIPE) as process:
            os.close(inner)
            os.write(outer, b"echo $((6 * 7))-typed; exit 5\n")
            said = b""
            while b"42-typed" not in said:
                said += os.read(outer, 4096)
            process.communicate(timeout=120)
        os.close(outer)
        assert process.returncode == 5
        assert left(cluster, made.namespace) == []


async def test_a_reaper_in_the_cluster_goes_on_until_it_is_ended(cluster: Cluster, tmp_path: Path) -> None:
    """What it finds is removed with its own rights; ending it is no failure of anything."""
    async with applied(cluster, tmp_path, "--reaper", "registry.invalid/reaper") as made:
        with cluster.api() as api:
            seeds = Seeded(cluster, api, made.namespace)
            seeds.lease("sandlot-client-dddddddd", "client", "dddddddd", OLD)
            seeds.pod("dead", "dddddddd")
            command = [*SANDLOT, "gc", "--kubernetes", "--watch", "--kubeconfig", str(made.kubeconfig(REAPER))]
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                pods.until(lambda: "dead" not in seeds.names(), "the reaper")
                process.send_signal(signal.SIGTERM)
                _, said = process.communicate(timeout=60)
        assert process.returncode == 128 + signal.SIGTERM
        assert "Traceback" not in said
