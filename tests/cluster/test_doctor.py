"""`sandlot doctor --kubernetes`, as a person and as a script call it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from cluster import Cluster
from sandlot.backends.kubernetes.manifests import CLIENT
from tests.cluster.applying import applied


def doctor(kubeconfig: Path, cache: Path, *options: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code, and the findings by what they are about."""
    command = [sys.executable, "-m", "sandlot.cli.main", "doctor", "--kubernetes", "--json", *options]
    environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "SANDLOT_CACHE": str(cache)}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=False, timeout=600)
    assert done.stdout, done.stderr
    return done.returncode, {one["what"]: one for one in json.loads(done.stdout)["findings"]}


def test_an_administrator_sees_everything(cluster: Cluster, tmp_path: Path) -> None:
    """Versions, the kubelet's limits, the registry; nothing blocks."""
    code, found = doctor(cluster.kubeconfig, tmp_path)
    assert code == 0
    assert found["API server"]["level"] == "good"
    assert found["registry"]["found"].startswith(cluster.registry)
    assert found["delivery"]["found"].startswith("image")
    assert "kubelet limits" not in found
    assert "nodes ready: 1" in found["room"]["found"]


async def test_a_client_with_least_rights_is_told_what_it_cannot_see(cluster: Cluster, tmp_path: Path) -> None:
    """As unknown, and never as good; it can make sandboxes all the same."""
    async with applied(cluster, tmp_path) as made:
        code, found = doctor(made.kubeconfig(CLIENT), tmp_path)
    assert code == 0
    for what in ("pod security level", "quotas", "limit ranges", "webhooks", "nodes", "kubelet limits", "rights to look"):
        assert found[what]["level"] == "unknown", what
    assert found["rights"]["level"] == "good"
    assert found["delivery"]["found"].startswith("init")


async def test_what_stands_in_the_way_is_told(cluster: Cluster, tmp_path: Path) -> None:
    """A quota and a limit range in the namespace, and a namespace that is not there."""
    async with applied(cluster, tmp_path, "--looking") as made:
        with cluster.api() as api:
            path = f"/api/v1/namespaces/{made.namespace}"
            api.post(f"{path}/resourcequotas", {"metadata": {"name": "few"}, "spec": {"hard": {"pods": "3"}}})
            limits = {"limits": [{"type": "Container", "default": {"memory": "64Mi"}}]}
            api.post(f"{path}/limitranges", {"metadata": {"name": "small"}, "spec": limits})
        code, found = doctor(made.kubeconfig(CLIENT), tmp_path)
    assert code == 0
    assert found["quota"]["found"].startswith("few: pods")
    assert found["limit range"]["found"] == "small for Container"
    code, found = doctor(cluster.kubeconfig, tmp_path, "--namespace", "no-such-namespace")
    assert (code, found["namespace"]["level"]) == (3, "blocks")
