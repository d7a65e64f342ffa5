"""From facts to findings."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandlot.backends.kubernetes.objects import Metadata
from sandlot.backends.kubernetes.preflight.facts import (
    Facts,
    Kubelet,
    Node,
    NodeCondition,
    NodeInfo,
    NodeSpec,
    NodeStatus,
    Quota,
    QuotaStatus,
    Range,
    RangeItem,
    RangeSpec,
    Requirement,
    Rule,
    Selector,
    Tried,
    Webhook,
)
from sandlot.backends.kubernetes.preflight.judging import Finding, judge
from sandlot.backends.kubernetes.rights import RIGHTS

NODE = Node(
    Metadata(name="n1"),
    NodeSpec(pod_cidr="10.0.0.0/24"),
    NodeStatus(
        allocatable={"pods": "110"},
        node_info=NodeInfo("v1.36.3", "containerd://2.4.2", "amd64"),
        conditions=(NodeCondition("Ready", "True"),),
    ),
)
TUNED = Kubelet(
    max_pods=110, pod_pids_limit=4096, kube_api_qps=200, registry_pull_qps=0, serialize_image_pulls=False,
    single_process_oom_kill=True,
)  # fmt: skip
GOOD = Facts(
    server="https://127.0.0.1:6443", namespace="rl", version="v1.36.3", rights=dict.fromkeys(RIGHTS, ()),
    namespace_labels={}, quotas=(), ranges=(), webhooks=(), nodes=(NODE,), kubelets={"n1": TUNED}, runtime_classes=(),
    registry="127.0.0.1:5000", tried=(Tried("dial-out", "image", True, 0.5),),
)  # fmt: skip


def found(facts: Facts, what: str) -> Finding:
    one = next((one for one in judge(facts) if one.what == what), None)
    assert one is not None, f"nothing was found about {what}"
    return one


def test_a_cluster_with_nothing_in_the_way_says_so() -> None:
    """But for the scheduler, which cannot be asked."""
    assert {one.what for one in judge(GOOD) if one.level in ("blocks", "costs", "unknown")} == {"scheduler rate"}


def test_what_may_not_be_asked_is_unknown_and_never_good() -> None:
    """Each with what its not being known may cost."""
    blind = Facts(server="https://127.0.0.1", namespace="rl", version="v1.36.3")
    unknown = {one.what for one in judge(blind) if one.level == "unknown"}
    assert {"pod security level", "quotas", "limit ranges", "webhooks", "nodes", "kubelet limits", "links"} <= unknown
    assert all(one.cost for one in judge(blind) if one.level == "unknown")


@pytest.mark.parametrize("purpose", ["sandboxes", "exec-bridge", "looking"])
def test_only_what_every_client_needs_blocks(purpose: str) -> None:
    """The rest costs a way or a view; each says how to get it."""
    rights = {right: right.verbs if right.purpose == purpose else () for right in RIGHTS}
    findings = judge(replace(GOOD, rights=rights))
    assert any(one.level == "blocks" for one in findings) == (purpose == "sandboxes")
    assert any("missing: " in one.found and one.remedy for one in findings)


def test_the_gravest_comes_first() -> None:
    """A missing namespace before what costs."""
    assert judge(replace(GOOD, namespace_missing=True, namespace_labels=None))[0].what == "namespace"


def test_a_quota_is_told_with_what_is_used() -> None:
    """And with the other thing it costs: one counter for all creates."""
    quota = Quota(Metadata(name="q"), QuotaStatus({"pods": "10"}, {"pods": "3"}))
    assert "pods 3 of 10" in found(replace(GOOD, quotas=(quota,)), "quota").found


def test_a_limit_range_is_told() -> None:
    """By the kinds of objects it touches."""
    one = Range(Metadata(name="r"), RangeSpec((RangeItem("Container"),)))
    assert found(replace(GOOD, ranges=(one,)), "limit range").found == "r for Container"


def hook(**changed: object) -> Webhook:
    rule = Rule([""], ["pods"], ["CREATE"])
    values = {"name": "hook.example.org", "rules": [rule], "failure_policy": "Fail", "timeout_seconds": 7} | changed
    return Webhook(**values)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("webhook", "asked"),
    [
        (hook(), True),
        (hook(rules=[Rule(["*"], ["*/*"], ["*"])]), True),
        (hook(rules=[Rule(["apps"], ["deployments"], ["CREATE"])]), False),
        (hook(rules=[Rule([""], ["pods"], ["DELETE"])]), False),
        (hook(rules=None), False),
        (hook(namespace_selector=Selector({"inject": "yes"})), False),
        (hook(namespace_selector=Selector({"kubernetes.io/metadata.name": "rl"})), True),
        (hook(namespace_selector=Selector(None, [Requirement("team", "NotIn", ["rl"])])), False),
        (hook(namespace_selector=Selector(None, [Requirement("team", "Exists")])), True),
        (hook(object_selector=Selector(None, [Requirement("sandlot.dev/kind", "DoesNotExist")])), False),
        (hook(object_selector=Selector(None, [Requirement("sandlot.dev/kind", "In", ["sandbox"])])), True),
    ],
)
def test_only_webhooks_that_are_asked_about_sandboxes_count(webhook: Webhook, asked: bool) -> None:
    """By their rules, the namespace's labels, and the labels that sandboxes bear."""
    facts = replace(GOOD, webhooks=(webhook,), namespace_labels={"team": "rl"})
    assert any(one.what == "webhook" for one in judge(facts)) == asked


def test_a_webhook_that_may_fail_creates_says_so() -> None:
    """And how long each create waits for it."""
    cost = found(replace(GOOD, webhooks=(hook(),)), "webhook").cost
    assert "up to 7 s" in cost
    assert "every create fails" in cost
    assert "fails" not in found(replace(GOOD, webhooks=(hook(failure_policy="Ignore"),)), "webhook").cost


def test_more_pods_than_addresses_is_told() -> None:
    """The last of them would start without a network."""
    narrow = Node(NODE.metadata, NodeSpec(pod_cidr="10.0.0.0/26"), NODE.status)
    assert found(replace(GOOD, nodes=(narrow,)), "pod addresses").found == "n1 takes 110 pods and has 61 addresses for them"
    assert not any(one.what == "pod addresses" for one in judge(GOOD))


def test_stock_kubelets_are_told_once_for_all_nodes_alike() -> None:
    """Values that are not said are the defaults."""
    findings = judge(replace(GOOD, kubelets={f"n{number}": Kubelet() for number in range(5)}))
    pulls = [one.found for one in findings if one.what == "image pulls"]
    assert pulls == [
        "registryPullQPS 5 (n0, n1, n2 and 2 more)",
        "serializeImagePulls true (n0, n1, n2 and 2 more)",
    ]


def test_ways_that_were_tried_are_told_and_none_at_all_blocks() -> None:
    """With what was said when it failed."""
    failed = replace(GOOD, tried=(Tried("dial-in", "image", False, None, "no route"),))
    assert found(failed, "sandbox by dial-in, image").found == "no route"
    assert found(failed, "links").level == "blocks"


@pytest.mark.parametrize(("level", "told"), [("restricted", "costs"), ("baseline", "good")])
def test_the_security_level_is_told(level: str, told: str) -> None:
    """One that refuses root costs most task images; both refuse directories of the node."""
    labels = {"pod-security.kubernetes.io/enforce": level}
    one = found(replace(GOOD, namespace_labels=labels), "pod security level")
    assert one.level == told
    assert "hostpath is refused" in one.cost or "delivery by hostpath" in one.cost
