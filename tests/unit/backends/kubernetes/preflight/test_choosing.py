"""What `auto` stands for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from sandlot.backends.kubernetes.objects import Metadata
from sandlot.backends.kubernetes.preflight.choosing import choose_connect, choose_delivery
from sandlot.backends.kubernetes.preflight.facts import Node, NodeCondition, NodeInfo, NodeSpec, NodeStatus, Taint, Tried

READY = (NodeCondition("Ready", "True"),)


def node(kubelet: str = "v1.36.3", runtime: str = "containerd://2.1.4", *, taint: str = "") -> Node:
    taints = (Taint("x", taint),) if taint else None
    info = NodeInfo(kubelet, runtime, "amd64")
    return Node(Metadata(name="n"), NodeSpec(taints=taints), NodeStatus(node_info=info, conditions=READY))


@pytest.mark.parametrize(
    ("version", "nodes", "chosen"),
    [
        ("v1.36.3", [node()], "image"),
        ("v1.35.0", [node("v1.35.1", "cri-o://1.35.0")], "image"),
        ("v1.34.9", [node()], "init"),
        ("v1.36.3", [node("v1.34.2")], "init"),
        ("v1.36.3", [node(runtime="containerd://2.0.7")], "init"),
        ("v1.36.3", [node(runtime="containerd://1.7.30"), node()], "init"),
        ("v1.36.3", [node(runtime="docker://27.0")], "init"),
        ("v1.36.3", [node(), node("kwok-v0.8.0", "kwok-v0.8.0", taint="NoSchedule")], "image"),
        ("v1.36.3", [node(taint="NoSchedule")], "init"),
        ("v1.36.3", [], "init"),
        ("v1.36.3", None, "init"),
        ("", [node()], "init"),
        ("v2.1.0", [node()], "init"),
    ],
)
def test_image_volumes_only_where_every_node_surely_has_them(version: str, nodes: Sequence[Node] | None, chosen: str) -> None:
    """A pod that waits for a volume that never comes is worse than a container more."""
    choice = choose_delivery(version, nodes)
    assert choice.value == chosen
    assert choice.why


def test_what_was_tried_counts_for_more_than_versions() -> None:
    """Either way; one that works is enough."""
    works = Tried("dial-in", "image", True, 1.0)
    fails = Tried("dial-in", "image", False, None, "no")
    assert choose_delivery("v1.30.0", None, [works]).value == "image"
    assert choose_delivery("v1.36.0", [node()], [fails]).value == "init"
    assert choose_delivery("v1.36.0", [node()], [fails, works]).value == "image"


@pytest.mark.parametrize(
    ("works", "chosen"),
    [
        (["dial-out", "dial-in", "exec-bridge"], "dial-out"),
        (["exec-bridge", "dial-in"], "dial-in"),
        (["exec-bridge"], "exec-bridge"),
        ([], None),
    ],
)
def test_the_cheapest_way_that_works(works: list[str], chosen: str | None) -> None:
    """For the cluster: dialling out costs its API server nothing."""
    choice = choose_connect(in_cluster=False, advertised=False, tried=[Tried(way, "image", True, 1.0) for way in works])
    assert (choice.value if choice else None) == chosen


def test_a_client_in_a_pod_or_with_a_named_address_is_dialled() -> None:
    """Unless trying has shown that another way is the one."""
    inside = choose_connect(in_cluster=True, advertised=False)
    named = choose_connect(in_cluster=False, advertised=True, tried=[Tried("exec-bridge", "image", True)])
    tried = choose_connect(in_cluster=True, advertised=False, tried=[Tried("exec-bridge", "image", True)])
    assert [one.value for one in (inside, named, tried) if one] == ["dial-out", "dial-out", "exec-bridge"]
