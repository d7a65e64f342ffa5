"""Pods for the cluster's own tests, in a namespace of the test's."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cluster import Cluster
from cluster.api import Api
from cluster.nodes import FAKE_TAINT, is_ready

PATIENCE_S = 120.0


@contextmanager
def namespace(api: Api) -> Iterator[str]:
    """A new namespace that takes pods; deleted at the end with what it holds."""
    name = f"test-{secrets.token_hex(4)}"
    api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    try:
        until(lambda: api.exists(f"/api/v1/namespaces/{name}/serviceaccounts/default"), "service account")
        yield name
    finally:
        api.delete(f"/api/v1/namespaces/{name}")


@contextmanager
def lasting_namespace(cluster: Cluster) -> Iterator[str]:
    """As `namespace`, for as long as it takes: no connection lies idle meanwhile, which a server may close."""
    name = f"test-{secrets.token_hex(4)}"
    with cluster.api() as api:
        api.post("/api/v1/namespaces", {"metadata": {"name": name}})
        until(lambda: api.exists(f"/api/v1/namespaces/{name}/serviceaccounts/default"), "service account")
    try:
        yield name
    finally:
        with cluster.api() as api:
            api.delete(f"/api/v1/namespaces/{name}")


def until(condition: Any, what: str) -> None:
    """Poll for a condition of the real world; AssertionError when it does not come."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for: {what}"
        time.sleep(0.05)


async def becomes(condition: Callable[[], bool], what: str) -> None:
    """The same, for what this event loop itself brings about."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for: {what}"
        await asyncio.sleep(0.02)


def run(api: Api, space: str, name: str, **spec: Any) -> dict[str, Any]:
    """Create a pod with one container `main` and wait until it is ready; the pod as it then is."""
    container = {"name": "main", "image": spec.pop("image"), "command": spec.pop("command", None) or ["sleep", "100000"]}
    container |= spec.pop("container", {})
    labels = spec.pop("labels", {})
    base = {"terminationGracePeriodSeconds": 0, "automountServiceAccountToken": False, "containers": [container]}
    api.post(f"/api/v1/namespaces/{space}/pods", {"metadata": {"name": name, "labels": labels}, "spec": base | spec})
    return ready(api, space, name)


def ready(api: Api, space: str, name: str) -> dict[str, Any]:
    """Wait until a pod is ready."""
    found: dict[str, Any] = {}

    def look() -> bool:
        found.update(api.get(f"/api/v1/namespaces/{space}/pods/{name}"))
        return is_ready(found)

    end = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < end, f"pod {name} is not ready: {found['status']}"
        time.sleep(0.05)
    return found


def on_fake_node() -> Mapping[str, Any]:
    """The part of a pod's spec that sends it to a fake node."""
    return {"nodeSelector": {"type": "kwok"}, "tolerations": [{**FAKE_TAINT}]}


def log(api: Api, space: str, name: str) -> str:
    return api.text(f"/api/v1/namespaces/{space}/pods/{name}/log")
