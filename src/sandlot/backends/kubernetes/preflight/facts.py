"""What was seen of a cluster. None stands for what could not be asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from sandlot.backends.kubernetes.objects import ListMeta, Metadata, Object
from sandlot.backends.kubernetes.rights import Right


class QuotaStatus(Object, frozen=True):
    """Amounts as Kubernetes writes them."""

    hard: dict[str, str] = msgspec.field(default_factory=dict)
    used: dict[str, str] = msgspec.field(default_factory=dict)


class Quota(Object, frozen=True):
    """One ResourceQuota."""

    metadata: Metadata = Metadata()
    status: QuotaStatus = QuotaStatus()


class RangeItem(Object, frozen=True):
    type: str = ""
    max: dict[str, str] = msgspec.field(default_factory=dict)
    min: dict[str, str] = msgspec.field(default_factory=dict)


class RangeSpec(Object, frozen=True):
    limits: tuple[RangeItem, ...] = ()


class Range(Object, frozen=True):
    """One LimitRange."""

    metadata: Metadata = Metadata()
    spec: RangeSpec = RangeSpec()


class Requirement(Object, frozen=True):
    key: str = ""
    operator: str = ""
    values: list[str] | None = None


class Selector(Object, frozen=True):
    """A label selector; one that says nothing selects all."""

    match_labels: dict[str, str] | None = None
    match_expressions: list[Requirement] | None = None

    def selects(self, labels: Mapping[str, str]) -> bool:
        """As the API server evaluates it (apimachinery, `LabelSelectorAsSelector`)."""
        return all(labels.get(key) == value for key, value in (self.match_labels or {}).items()) and all(
            _meets(one, labels) for one in self.match_expressions or ()
        )


def _meets(one: Requirement, labels: Mapping[str, str]) -> bool:
    values = one.values or []
    if one.operator == "In":
        return labels.get(one.key) in values and one.key in labels
    if one.operator == "NotIn":
        return one.key not in labels or labels[one.key] not in values
    return (one.key in labels) == (one.operator == "Exists")


class Rule(Object, frozen=True):
    api_groups: list[str] | None = None
    resources: list[str] | None = None
    operations: list[str] | None = None

    @property
    def is_about_new_pods(self) -> bool:
        groups, resources, operations = self.api_groups or [], self.resources or [], self.operations or []
        return (
            bool({"", "*"} & set(groups))
            and bool({"pods", "*", "*/*"} & set(resources))
            and bool({"CREATE", "*"} & set(operations))
        )


class Webhook(Object, frozen=True):
    """Somebody whom the API server asks at creates."""

    name: str = ""
    namespace_selector: Selector | None = None
    object_selector: Selector | None = None
    rules: list[Rule] | None = None
    failure_policy: str | None = None
    timeout_seconds: int | None = None


class WebhookConfiguration(Object, frozen=True):
    metadata: Metadata = Metadata()
    webhooks: list[Webhook] | None = None


class Taint(Object, frozen=True):
    key: str = ""
    effect: str = ""


class NodeInfo(Object, frozen=True):
    kubelet_version: str = ""
    container_runtime_version: str = ""
    architecture: str = ""


class HandlerFeatures(Object, frozen=True):
    user_namespaces: bool = False


class Handler(Object, frozen=True):
    name: str = ""
    features: HandlerFeatures | None = None


class NodeCondition(Object, frozen=True):
    type: str = ""
    status: str = ""


class NodeSpec(Object, frozen=True):
    pod_cidr: str | None = msgspec.field(default=None, name="podCIDR")
    unschedulable: bool = False
    taints: tuple[Taint, ...] | None = None


class NodeStatus(Object, frozen=True):
    allocatable: dict[str, str] = msgspec.field(default_factory=dict)
    node_info: NodeInfo = NodeInfo()
    conditions: tuple[NodeCondition, ...] | None = None
    runtime_handlers: tuple[Handler, ...] | None = None


class Node(Object, frozen=True):
    """One node as it describes itself."""

    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def is_ready(self) -> bool:
        """Ready, and open to pods that tolerate nothing."""
        ready = any(one.type == "Ready" and one.status == "True" for one in self.status.conditions or ())
        closed = any(taint.effect in ("NoSchedule", "NoExecute") for taint in self.spec.taints or ())
        return ready and not self.spec.unschedulable and not closed

    @property
    def pods(self) -> int:
        text = self.status.allocatable.get("pods", "")
        return int(text) if text.isdigit() else 0


class Nodes(Object, frozen=True):
    metadata: ListMeta = ListMeta()
    items: tuple[Node, ...] = ()


class Kubelet(Object, frozen=True):
    """The part of a kubelet's configuration that caps bursts or decides who dies."""

    max_pods: int | None = None
    pod_pids_limit: int | None = None
    kube_api_qps: int | None = msgspec.field(default=None, name="kubeAPIQPS")
    registry_pull_qps: int | None = msgspec.field(default=None, name="registryPullQPS")
    serialize_image_pulls: bool | None = None
    max_parallel_image_pulls: int | None = None
    image_gc_high_threshold_percent: int | None = msgspec.field(default=None, name="imageGCHighThresholdPercent")
    single_process_oom_kill: bool | None = msgspec.field(default=None, name="singleProcessOOMKill")


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one real sandbox."""

    way: str
    """`dial-out`, `dial-in` or `exec-bridge`."""
    delivery: str
    works: bool
    seconds: float | None = None
    """From asking to the end of its first command."""
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything that was seen at one time."""

    server: str
    namespace: str
    version: str = ""
    """Of the API server, such as v1.36.3."""
    in_cluster: bool = False
    rights: Mapping[Right, tuple[str, ...]] = field(default_factory=dict)
    """For each right the verbs that are missing."""
    namespace_labels: Mapping[str, str] | None = None
    namespace_missing: bool = False
    quotas: tuple[Quota, ...] | None = None
    ranges: tuple[Range, ...] | None = None
    webhooks: tuple[Webhook, ...] | None = None
    nodes: tuple[Node, ...] | None = None
    kubelets: Mapping[str, Kubelet] = field(default_factory=dict)
    """Of some nodes, by name; empty when none may be asked."""
    runtime_classes: tuple[str, ...] | None = None
    registry: str | None = None
    """The one that the cluster advertises; empty: none."""
    tried: tuple[Tried, ...] = ()

    @property
    def minor(self) -> int | None:
        """36 for v1.36.3."""
        return minor_version(self.version)


def minor_version(text: str) -> int | None:
    """The minor number of a version of Kubernetes 1; None for what is no such version."""
    major, _, rest = text.removeprefix("v").partition(".")
    minor = rest.partition(".")[0].rstrip("+")
    return int(minor) if major == "1" and minor.isdigit() else None
