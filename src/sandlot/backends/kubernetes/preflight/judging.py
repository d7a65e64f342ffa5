"""From facts to findings: what is in the way of a burst, what it costs, and what to do. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from sandlot.backends.kubernetes import naming
from sandlot.backends.kubernetes.preflight.choosing import choose_connect, choose_delivery
from sandlot.backends.kubernetes.preflight.facts import Facts, Kubelet, Webhook

Level = Literal["blocks", "costs", "unknown", "note", "good"]
"""`blocks`: no sandbox will come to be. `costs`: they will, later or fewer of them. `unknown`: may not be asked."""

SECURITY_LABEL: Final = "pod-security.kubernetes.io/enforce"
STOCK_BINDS_S: Final = 50
"""Pods a second that a scheduler places with its defaults: one write each, `clientConnection.qps` 50."""
STOCK_STATUS_QPS: Final = 50  # kubelet, kubeAPIQPS: 2 calls a change of status
ENOUGH_PULL_QPS: Final = 20
_SHOWN: Final = 3
_ASK: Final = "ask an administrator"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found."""

    level: Level
    what: str
    found: str
    cost: str = ""
    remedy: str = ""


def judge(facts: Facts) -> list[Finding]:
    """All findings, the gravest first, in a stable order."""
    found = [finding for rule in _RULES for finding in rule(facts)]
    order = ("blocks", "costs", "unknown", "note", "good")
    return sorted(found, key=lambda one: order.index(one.level))


def _server(facts: Facts) -> Iterator[Finding]:
    yield Finding("good" if facts.minor else "unknown", "API server", f"{facts.server}, {facts.version or 'version unknown'}")


def _rights(facts: Facts) -> Iterator[Finding]:
    remedy = f"sandlot manifests --namespace {facts.namespace} | kubectl apply -f -"
    lacking: dict[str, list[str]] = {}
    for right, verbs in facts.rights.items():
        if verbs:
            lacking.setdefault(right.purpose, []).append(f"{'/'.join(verbs)} {right.resource}")
    for purpose, missing in lacking.items():
        told = "missing: " + ", ".join(missing)
        if purpose == "sandboxes":
            yield Finding("blocks", "rights", told, "no sandbox can be made or removed", remedy)
        elif purpose == "exec-bridge":
            cost = "clients that pods cannot reach, and that cannot reach pods, have no way to them"
            yield Finding("note", "rights for exec-bridge", told, cost, f"{remedy} (with --exec-bridge)")
        else:
            yield Finding("unknown", "rights to look", told, "what is listed as unknown here stays so", _ASK)
    if "sandboxes" not in lacking and facts.rights:
        yield Finding("good", "rights", "all that making and removing sandboxes needs")


def _namespace(facts: Facts) -> Iterator[Finding]:
    if facts.namespace_missing:
        cost, remedy = "no sandbox can be made", f"sandlot manifests --namespace {facts.namespace} | kubectl apply -f -"
        yield Finding("blocks", "namespace", f"{facts.namespace} does not exist", cost, remedy)
        return
    if facts.namespace_labels is None:
        yield Finding(
            "unknown", "pod security level", "the namespace may not be read", "pods may be refused", "try one: --probe"
        )
        return
    level = facts.namespace_labels.get(SECURITY_LABEL, "privileged")
    if level == "restricted":
        cost = "pods that run as root are refused, and so is delivery by hostpath (as by baseline, too)"
        remedy = 'PodOptions(security="restricted") with a numeric user, or label the namespace baseline'
        yield Finding("costs", "pod security level", level, cost, remedy)
    else:
        cost = "delivery by hostpath is refused" if level == "baseline" else ""
        yield Finding("good", "pod security level", f"{level} (namespace {facts.namespace})", cost)


def _quotas(facts: Facts) -> Iterator[Finding]:
    if facts.quotas is None:
        yield Finding(
            "unknown", "quotas", "may not be listed", "creates may be refused beyond a number", "ask an administrator"
        )
    for quota in facts.quotas or ():
        hard, used = quota.status.hard, quota.status.used
        told = ", ".join(f"{name} {used.get(name, '?')} of {hard[name]}" for name in sorted(hard))
        cost = "creates beyond it are refused (Capacity), and all creates of the namespace queue for one object's counter"
        yield Finding(
            "costs", "quota", f"{quota.metadata.name}: {told}", cost, "a namespace for sandboxes alone, without a quota"
        )


def _ranges(facts: Facts) -> Iterator[Finding]:
    if facts.ranges is None:
        yield Finding(
            "unknown", "limit ranges", "may not be listed", "limits of sandboxes may be changed", "ask an administrator"
        )
    for one in facts.ranges or ():
        kinds = sorted({item.type for item in one.spec.limits})
        cost = "pods get limits that nobody asked for, or are refused"
        found = f"{one.metadata.name} for {', '.join(kinds)}"
        yield Finding("costs", "limit range", found, cost, "remove it from the sandboxes' namespace")


def _webhooks(facts: Facts) -> Iterator[Finding]:
    if facts.webhooks is None:
        yield Finding("unknown", "webhooks", "may not be listed", "each create may wait for somebody", _ASK)
    for hook in facts.webhooks or ():
        if _is_asked(hook, facts):
            within = hook.timeout_seconds or 10
            fails = hook.failure_policy != "Ignore"
            cost = f"every create waits for it, up to {within} s" + ("; while it is down, every create fails" if fails else "")
            remedy = "leave the namespace, or pods labelled sandlot.dev/kind=sandbox, out of its selectors"
            yield Finding("costs", "webhook", hook.name, cost, remedy)


def _is_asked(hook: Webhook, facts: Facts) -> bool:
    """Whether it is asked when a sandbox is made."""
    home = {"kubernetes.io/metadata.name": facts.namespace, **(facts.namespace_labels or {})}
    labels = {naming.KIND: "sandbox", naming.OWNER: "attached"}
    return (
        any(rule.is_about_new_pods for rule in hook.rules or ())
        and (hook.namespace_selector is None or hook.namespace_selector.selects(home))
        and (hook.object_selector is None or hook.object_selector.selects(labels))
    )


def _nodes(facts: Facts) -> Iterator[Finding]:
    if facts.nodes is None:
        cost = "how many sandboxes there is room for is unknown"
        yield Finding("unknown", "nodes", "may not be listed", cost, "grant list on nodes (sandlot manifests --looking)")
        return
    ready = [node for node in facts.nodes if node.is_ready]
    if not ready:
        cost = "pods stay Pending unless they tolerate what the nodes are tainted with"
        yield Finding(
            "costs", "nodes", f"{len(facts.nodes)}, none of them ready and untainted", cost, "PodOptions(tolerations=...)"
        )
        return
    room = sum(node.pods for node in ready)
    yield Finding(
        "note", "room", f"{room} pods, nodes ready: {len(ready)}, what runs there included", f"more than {room} queue"
    )
    few = [node for node in ready if node.spec.pod_cidr and _addresses(node.spec.pod_cidr) < node.pods]
    if few:
        addresses = _addresses(few[0].spec.pod_cidr or "")
        found = f"{few[0].metadata.name} takes {few[0].pods} pods and has {addresses} addresses for them"
        cost = "pods beyond that start without a network, fail and are tried again for minutes"
        yield Finding("costs", "pod addresses", found, cost, "lower maxPods, or larger node ranges (--node-cidr-mask-size)")
    handlers = [one for node in ready for one in node.status.runtime_handlers or () if one.features is not None]
    if any(one.features is not None and one.features.user_namespaces for one in handlers):
        yield Finding(
            "note", "user namespaces", "nodes offer them", "", "PodOptions(host_users=False): root inside is nobody outside"
        )


def _addresses(cidr: str) -> int:
    """Addresses for pods in a node's range: without network, broadcast and the bridge's own."""
    try:
        return max(ipaddress.ip_network(cidr, strict=False).num_addresses - 3, 0)
    except ValueError:
        return 2**32


def _kubelets(facts: Facts) -> Iterator[Finding]:
    if not facts.kubelets:
        yield Finding(
            "unknown", "kubelet limits", "configz may not be read (nodes/proxy)",
            "stock values cap a burst: 5 pulls a second, one at a time, about 12 starts told a second for each node",
            "an administrator may look: kubectl get --raw /api/v1/nodes/NODE/proxy/configz",
        )  # fmt: skip
    told: dict[tuple[str, str, str, str], list[str]] = {}
    for name, one in facts.kubelets.items():
        for rule in _kubelet_rules(one):
            told.setdefault(rule, []).append(name)
    for (what, found, cost, remedy), names in told.items():
        where = ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        level: Level = "note" if what == "out of memory" else "costs"
        yield Finding(level, what, f"{found} ({where})", cost, remedy)


def _kubelet_rules(one: Kubelet) -> Iterator[tuple[str, str, str, str]]:
    """(what, found, cost, remedy). Defaults are those of v1.36."""
    pulls = 5 if one.registry_pull_qps is None else one.registry_pull_qps
    if 0 < pulls < ENOUGH_PULL_QPS:
        cost = "images beyond that rate fail with 'pull QPS exceeded' and wait 10 s and more"
        yield "image pulls", f"registryPullQPS {pulls}", cost, "registryPullQPS: 0 in the kubelet's configuration"
    if one.serialize_image_pulls is not False:
        cost = "a node pulls one image at a time"
        yield "image pulls", "serializeImagePulls true", cost, "serializeImagePulls: false, maxParallelImagePulls: 8"
    qps = STOCK_STATUS_QPS if one.kube_api_qps is None else one.kube_api_qps
    if qps <= STOCK_STATUS_QPS:
        cost = f"a node tells of {qps // 2} changes a second: felt by dial-in and exec-bridge, not by dial-out"
        yield "status updates", f"kubeAPIQPS {qps}", cost, "connect by dial-out, or kubeAPIQPS: 200, kubeAPIBurst: 400"
    if one.pod_pids_limit is None or one.pod_pids_limit < 0:
        cost = "a fork bomb in one sandbox can take every process id of the node"
        yield "processes", "podPidsLimit unlimited", cost, "podPidsLimit: 4096"
    if not one.single_process_oom_kill:
        cost = "with cgroup v2 the kernel may kill all of a sandbox where one command took too much memory"
        yield (
            "out of memory",
            "singleProcessOOMKill off",
            cost,
            "singleProcessOOMKill: true (the daemon's own watch acts first)",
        )


def _scheduler(facts: Facts) -> Iterator[Finding]:
    yield Finding(
        "unknown", "scheduler rate", "its configuration cannot be read through the API server",
        f"stock: {STOCK_BINDS_S} pods a second, so 1,000 sandboxes wait 20 s for a place",
        "clientConnection: {qps: 500, burst: 1000} in its configuration",
    )  # fmt: skip


def _runtime_classes(facts: Facts) -> Iterator[Finding]:
    if facts.runtime_classes:
        yield Finding("note", "runtime classes", ", ".join(facts.runtime_classes), "", "PodOptions(runtime_class=...)")


def _registry(facts: Facts) -> Iterator[Finding]:
    if facts.registry:
        yield Finding("good", "registry", f"{facts.registry}, advertised by the cluster")
    else:
        found = "none is advertised" if facts.registry == "" else "what the cluster advertises may not be read"
        cost = "the daemon's image and images of this machine have nowhere to be published by themselves"
        yield Finding(
            "note", "registry", found, cost, "--registry HOST[:PORT]/PATH, or --daemon-image after sandlot image push-daemon"
        )


def _delivery(facts: Facts) -> Iterator[Finding]:
    choice = choose_delivery(facts.version, facts.nodes, facts.tried)
    cost = "" if choice.value == "image" else "one container more is started for each sandbox, and the daemon copied"
    yield Finding("good" if choice.value == "image" else "costs", "delivery", f"{choice.value}: {choice.why}", cost)


def _connect(facts: Facts) -> Iterator[Finding]:
    for one in facts.tried:
        what = f"sandbox by {one.way}, {one.delivery}"
        if one.works:
            yield Finding("good", what, "works" + (f", first command after {one.seconds:.2f} s" if one.seconds else ""))
        else:
            yield Finding("note", what, one.problem)
    if facts.tried and not any(one.works for one in facts.tried):
        yield Finding("blocks", "links", "no way that was tried works", "no sandbox becomes usable", "see what was tried")
    choice = choose_connect(in_cluster=facts.in_cluster, advertised=False, tried=facts.tried)
    if choice is not None:
        yield Finding("good", "links", f"{choice.value}: {choice.why}")
    elif not facts.tried:
        cost = "the first sandbox finds out, a few seconds later than the others"
        yield Finding(
            "unknown", "links", "whether pods reach this client, or it them", cost, "sandlot doctor --kubernetes --probe"
        )


_RULES: Final = (
    _server, _namespace, _rights, _delivery, _connect, _registry, _quotas, _ranges, _webhooks, _nodes, _kubelets, _scheduler,
    _runtime_classes,
)  # fmt: skip
