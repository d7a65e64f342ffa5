"""`ps` and `gc` on a cluster with clients alive and dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster
from tests.cluster import pods

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
        command = [sys.executable, "-m", "sandlot.cli.main", *words, "--kubernetes", "--namespace", self.space]
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
    command = [sys.executable, "-m", "sandlot.cli.main", *words, "--kubernetes", "--kubeconfig", str(tmp_path / "missing")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert "missing" in done.stderr
