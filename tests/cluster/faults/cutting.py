"""A pod's network cut off from everything, and put back: of this pod alone, and only for as long as it lives."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster import Cluster
from cluster.handle import Container


def container_of(cluster: Cluster, namespace: str, pod: str) -> Container:
    """The container of the task, as the node runs it."""
    found = [one for one in cluster.containers() if (one.namespace, one.pod, one.name) == (namespace, pod, "task")]
    assert len(found) == 1, found
    assert found[0].pid, "it has a process"
    return found[0]


@contextmanager
def cut_off(container: Container) -> Iterator[None]:
    """Nothing gets in or out in this block: the node's end of its wire is down."""
    wire = _wire(container)
    _ip("link", "set", wire, "down")
    try:
        yield
    finally:
        _ip("link", "set", wire, "up")


def _wire(container: Container) -> str:
    """The node's end of the pair of interfaces that leads into the pod."""
    index = Path(f"/proc/{container.pid}/root/sys/class/net/eth0/iflink").read_text()
    ours = [one.parent.name for one in Path("/sys/class/net").glob("*/ifindex") if one.read_text() == index]
    assert len(ours) == 1, ours
    return ours[0]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
