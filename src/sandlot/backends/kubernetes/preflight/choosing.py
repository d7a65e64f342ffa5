"""Which ways `auto` stands for. Pure: facts in, a choice with its reason out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Literal, TypeVar

from sandlot.backends.kubernetes.preflight.facts import Node, Tried, minor_version

Way = Literal["dial-out", "dial-in", "exec-bridge"]
Delivery = Literal["image", "init"]
T = TypeVar("T")

IMAGE_VOLUMES_MINOR: Final = 35
"""First version in which the feature ImageVolume is on unless somebody turns it off (beta and off from 1.33, alpha before)."""
_RUNTIMES: Final = {"containerd": (2, 1), "cri-o": (1, 31)}
"""First versions that mount images (their release notes)."""
_RUNTIME: Final = re.compile(r"([a-z-]+)://v?(\d+)\.(\d+)")
_ORDER: Final[tuple[Way, ...]] = ("dial-out", "dial-in", "exec-bridge")  # the cheapest for the cluster first


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """What was chosen, and why in one sentence."""

    value: T
    why: str


def choose_delivery(server_version: str, nodes: Sequence[Node] | None, tried: Iterable[Tried] = ()) -> Choice[Delivery]:
    """How the daemon comes into pods: what was tried and works, else an image volume where every node surely has them,
    else an init container, which works anywhere and costs a container more for each sandbox."""
    works = {one.delivery for one in tried if one.works}
    failed = {one.delivery for one in tried if not one.works} - works
    if "image" in works:
        return Choice("image", "image volumes were tried here and work")
    if "image" in failed:
        return Choice("init", "image volumes were tried here and do not work")
    minor = minor_version(server_version)
    if minor is None or minor < IMAGE_VOLUMES_MINOR:
        return Choice(
            "init", f"image volumes come with Kubernetes 1.{IMAGE_VOLUMES_MINOR}, this is {server_version or 'unknown'}"
        )
    if nodes is None:
        return Choice("init", "nodes may not be listed, so whether they mount images is unknown")
    open_nodes = [node for node in nodes if node.is_ready]
    lacking = [node for node in open_nodes if not mounts_images(node)]
    if lacking or not open_nodes:
        told = f"node {lacking[0].metadata.name} does not mount images" if lacking else "no node is ready"
        return Choice("init", told)
    return Choice("image", "every node that was looked at mounts images")


def mounts_images(node: Node) -> bool:
    """Whether kubelet and runtime of a node are new enough for image volumes."""
    info = node.status.node_info
    minor = minor_version(info.kubelet_version)
    match = _RUNTIME.match(info.container_runtime_version)
    if minor is None or minor < IMAGE_VOLUMES_MINOR or match is None:
        return False
    least = _RUNTIMES.get(match[1])
    return least is not None and (int(match[2]), int(match[3])) >= least


def choose_connect(*, in_cluster: bool, advertised: bool, tried: Iterable[Tried] = ()) -> Choice[Way] | None:
    """Who opens links: what was tried and works, the cheapest first; else dial-out from within a pod or where the caller
    says under which address pods reach this process. None: nothing is known, the first sandbox must find out."""
    works = {one.way: one for one in tried if one.works}
    if advertised:
        return Choice("dial-out", "the address under which pods reach this client was given")
    for way in _ORDER:
        if way in works:
            took = works[way].seconds
            return Choice(way, "it was tried here and works" + (f", first command after {took:.2f} s" if took else ""))
    if in_cluster:
        return Choice("dial-out", "this client is a pod, which pods can reach")
    return None
