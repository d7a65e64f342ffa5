"""The objects that make a namespace fit for sandboxes: rights, isolation, a reaper. Pure: options in, documents out.

Each right is one that something in Sandlot uses (`rights.RIGHTS`); what only some clients need is in a role of its own.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from sandlot.backends.kubernetes import naming
from sandlot.backends.kubernetes.options import LISTEN_PORT
from sandlot.backends.kubernetes.rights import Purpose, Right, granted
from sandlot.errors import BadRequest

Json = dict[str, Any]

CLIENT: Final = "sandlot-client"
"""The service account of clients, and the role that each of them needs."""
REAPER: Final = "sandlot-reaper"
CLIENT_LABEL: Final = naming.PREFIX + "reachable"
"""`"true"` on pods that sandboxes may call: clients in the cluster that are dialled out to."""
RBAC: Final = "rbac.authorization.k8s.io"

PRIVATE: Final = (
    "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16", "198.18.0.0/15",
)  # fmt: skip
"""Where nodes, pods, services, the API server and metadata are (RFC 6890): closed also to sandboxes that have a network."""
PRIVATE6: Final = ("fc00::/7", "fe80::/10")


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestOptions:
    """What shall be granted and made."""

    namespace: str = "sandlot"
    security: Literal["baseline", "restricted", "privileged"] = "baseline"
    """The pod security level that the namespace enforces. Root in a sandbox, as most task images want it, needs `baseline`;
    delivery by hostpath needs `privileged`."""
    exec_bridge: bool = False
    looking: bool = False
    """What lets `sandlot doctor` see more, and clients read which registry the cluster advertises."""
    policies: bool = False
    reaper_image: str | None = None
    """An image with Python and Sandlot in it, for the in-cluster reaper. None: no reaper."""
    clients: tuple[str, ...] = ()
    """Addresses (`ADDRESS[/BITS]`) of clients outside of the cluster, for the policies."""
    port: int | None = None
    """The one port of clients that sandboxes may call (`ClusterOptions.port`). None: every TCP port of those clients."""

    def __post_init__(self) -> None:
        naming.check_dns_label(self.namespace, "namespace")
        for text in self.clients:
            _network(text)


@dataclass(frozen=True, slots=True)
class Document:
    """One object, and what it is for."""

    why: str
    body: Json


def manifests(options: ManifestOptions) -> list[Document]:
    """Everything, in an order in which it can be applied."""
    documents = [Document("where sandboxes are made, and nothing else", _namespace(options))]
    documents += _client(options)
    if options.policies:
        documents += _policies(options)
    if options.reaper_image is not None:
        documents += _reaper(options, options.reaper_image)
    return documents


def as_yaml(documents: Iterable[Document]) -> str:
    """For `kubectl apply -f -`, each object after a line that says why."""
    import yaml

    parts = [f"# {one.why}\n{yaml.safe_dump(one.body, sort_keys=False, width=120)}" for one in documents]
    return "---\n".join(parts)


def _namespace(options: ManifestOptions) -> Json:
    enforce = {"pod-security.kubernetes.io/enforce": options.security, "pod-security.kubernetes.io/enforce-version": "latest"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": options.namespace, "labels": enforce}}


# --- rights -------------------------------------------------------------------------------------------------------------
def _client(options: ManifestOptions) -> list[Document]:
    namespace = options.namespace
    found = [
        Document(
            "who clients in the cluster are; for others: kubectl create token sandlot-client", _account(CLIENT, namespace)
        ),
        *_bound(CLIENT, namespace, ("sandboxes",), CLIENT, "what every client needs"),
    ]
    if options.exec_bridge:
        why = "links through the API server (whoever has this may run commands in every pod of the namespace)"
        found += _bound("sandlot-exec", namespace, ("exec-bridge",), CLIENT, why)
    if options.looking:
        found += _bound("sandlot-looking", namespace, ("looking",), CLIENT, "seeing more with sandlot doctor")
        found += _registry_reading(namespace)
    return found


def _bound(name: str, namespace: str, purposes: tuple[Purpose, ...], account: str, why: str) -> list[Document]:
    """Roles for these purposes, in the namespace and for the cluster where there is something to grant, and their bindings."""
    found = []
    for scope, kind, full in (("namespace", "Role", name), ("cluster", "ClusterRole", f"{name}-{namespace}")):
        rights = granted(purposes, "cluster" if scope == "cluster" else "namespace")
        if rights:
            home = {"namespace": namespace} if scope == "namespace" else {}
            reasons = "\n# ".join(f"{right.resource}: {right.why}" for right in rights)
            rules = [_rule(right, namespace) for right in rights]
            found.append(Document(f"{why}\n# {reasons}", _role(kind, {"name": full, **home}, rules)))
            found.append(Document(f"... and who has it: {account}", _binding(kind, full, home, account, namespace)))
    return found


def _role(kind: str, metadata: Mapping[str, str], rules: list[Json]) -> Json:
    return {"apiVersion": f"{RBAC}/v1", "kind": kind, "metadata": dict(metadata), "rules": rules}


def _rule(right: Right, namespace: str) -> Json:
    rule: Json = {"apiGroups": [right.group], "resources": [right.resource], "verbs": list(right.verbs)}
    if right.resource == "namespaces":
        rule["resourceNames"] = [namespace]
    return rule


def _binding(kind: str, name: str, home: Mapping[str, str], account: str, namespace: str) -> Json:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": {"name": name, **home},
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }


def _account(name: str, namespace: str) -> Json:
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False}


def _registry_reading(namespace: str) -> list[Document]:
    """The one object of kube-public that is of use."""
    name, home = f"sandlot-registry-{namespace}", {"namespace": "kube-public"}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["local-registry-hosting"], "verbs": ["get"]}
    return [
        Document("which registry the cluster advertises", _role("Role", {"name": name, **home}, [rule])),
        Document(f"... and who has it: {CLIENT}", _binding("Role", name, home, CLIENT, namespace)),
    ]


# --- isolation ----------------------------------------------------------------------------------------------------------
def _policies(options: ManifestOptions) -> list[Document]:
    ours = {"matchLabels": {naming.KIND: "sandbox"}}
    networked = {"matchLabels": {naming.KIND: "sandbox", naming.NETWORK: "host"}}
    clients: list[Json] = [{"namespaceSelector": {}, "podSelector": {"matchLabels": {CLIENT_LABEL: "true"}}}]
    clients += [{"ipBlock": {"cidr": str(_network(text))}} for text in options.clients]
    internet = [
        {"ipBlock": {"cidr": "0.0.0.0/0", "except": list(PRIVATE)}},
        {"ipBlock": {"cidr": "::/0", "except": list(PRIVATE6)}},
    ]
    calls: Json = {"protocol": "TCP"} if options.port is None else {"protocol": "TCP", "port": options.port}
    names = [{"protocol": kind, "port": 53} for kind in ("UDP", "TCP")]
    system = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}
    policy = _Policies(options.namespace)
    return [
        policy.document(
            "nothing reaches a sandbox and a sandbox reaches nothing: no other sandbox, API server, node or metadata address",
            "sandlot-deny", ours, {"policyTypes": ["Ingress", "Egress"]},
        ),
        policy.document(
            f"... but the clients that are dialled out to: pods labelled {CLIENT_LABEL}=true, and addresses that were named",
            "sandlot-dial-out", ours,
            {"policyTypes": ["Egress"], "egress": [{"to": clients, "ports": [calls]}]},
        ),
        policy.document(
            f"... and the daemon's port, from the same clients (dial-in, port {LISTEN_PORT})",
            "sandlot-dial-in", ours,
            {"policyTypes": ["Ingress"], "ingress": [{"from": clients, "ports": [{"protocol": "TCP", "port": LISTEN_PORT}]}]},
        ),
        policy.document(
            'a sandbox made with network="host" reaches the internet and names, and nothing private',
            "sandlot-network", networked,
            {"policyTypes": ["Egress"], "egress": [{"to": internet}, {"to": [system], "ports": names}]},
        ),
    ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Policies:
    """NetworkPolicies of one namespace."""

    namespace: str

    def document(self, why: str, name: str, selector: Json, rules: Json) -> Document:
        body = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {"podSelector": selector, **rules},
        }
        return Document(why, body)


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError as error:
        raise BadRequest(f"{text!r} is no address of a client", hint="write 192.0.2.7 or 192.0.2.0/24") from error


# --- reaper -------------------------------------------------------------------------------------------------------------
def _reaper(options: ManifestOptions, image: str) -> list[Document]:
    namespace = options.namespace
    return [
        Document("who the in-cluster reaper is", _account(REAPER, namespace)),
        *_bound(REAPER, namespace, ("reaper",), REAPER, "what removing the remains of dead clients needs"),
        Document("removes what dead clients left, also when no other client is there to do it", _deployment(namespace, image)),
    ]


def _deployment(namespace: str, image: str) -> Json:
    labels = {naming.PREFIX + "component": "reaper"}
    container = {
        "name": "reaper",
        "image": image,
        "command": ["sandlot", "gc", "--kubernetes", "--namespace", namespace, "--watch"],
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "256Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    pod = {
        "serviceAccountName": REAPER,
        "automountServiceAccountToken": True,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": REAPER, "namespace": namespace, "labels": labels},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
