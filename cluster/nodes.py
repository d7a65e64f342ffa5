"""Fake nodes, and waiting until a cluster can take pods."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from cluster.api import Api
from cluster.layout import FAKE_LABEL, FAKE_VALUE, REAL_NODE, Layout
from cluster.readiness import wait_until
from cluster.starting import StartError

_READY_S = 180.0
_CONNECTIONS = 8

FAKE_TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}


def fake_node(index: int) -> dict[str, Any]:
    """A node as large as one of a real cluster: 64 CPUs, 256 GiB, 500 pods."""
    name = f"fake-{index:05d}"
    room = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "500"}
    labels = {
        FAKE_LABEL: FAKE_VALUE,
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {"node.alpha.kubernetes.io/ttl": "0"}},
        "spec": {"taints": [FAKE_TAINT]},
        "status": {"allocatable": room, "capacity": room},
    }


def add_fake_nodes(layout: Layout, count: int) -> None:
    """Bring their number to `count`; more than that stay."""

    def add(start: int) -> None:
        with Api(layout.server, layout.pki) as api:
            for index in range(start, count, _CONNECTIONS):
                api.ensure("/api/v1/nodes", fake_node(index))

    with ThreadPoolExecutor(_CONNECTIONS) as pool:
        list(pool.map(add, range(min(_CONNECTIONS, count))))


def wait_usable(layout: Layout, fake_nodes: int, check: Callable[[], None]) -> None:
    """Until the real node and the fake ones are ready, and a pod may be posted.

    Raises:
        StartError: not within 180 s, or `check` said that something died.
    """
    with Api(layout.server, layout.pki) as api:
        space = "/api/v1/namespaces/default"
        # Without the first no pod is taken, without the second none starts.
        for needed in ("serviceaccounts/default", "configmaps/kube-root-ca.crt"):
            if not wait_until(partial(api.exists, f"{space}/{needed}"), timeout_s=_READY_S, check=check):
                raise StartError(f"the controller manager made no {needed} in the namespace default")
        missing: list[str] = []

        def all_ready() -> bool:
            missing[:] = _unready(api.get("/api/v1/nodes?resourceVersion=0")["items"], fake_nodes)
            return not missing

        if not wait_until(all_ready, timeout_s=_READY_S, check=check):
            raise StartError(f"not ready: {', '.join(missing[:5])}")


def _unready(nodes: list[Mapping[str, Any]], fake_nodes: int) -> list[str]:
    ready = {node["metadata"]["name"] for node in nodes if is_ready(node) and not _held_back(node)}
    wanted = {REAL_NODE, *(f"fake-{index:05d}" for index in range(fake_nodes))}
    return sorted(wanted - ready, reverse=True)


def _held_back(node: Mapping[str, Any]) -> bool:
    """Whether it still has the taint of a new node, which goes a little after the node is ready."""
    return any(one["key"] == "node.kubernetes.io/not-ready" for one in node["spec"].get("taints", []))


def is_ready(thing: Mapping[str, Any]) -> bool:
    """Whether a node's or pod's condition Ready is True."""
    conditions = thing.get("status", {}).get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
