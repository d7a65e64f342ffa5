"""What Sandlot may have to do in a cluster, one line a right: `sandlot manifests` grants them, `sandlot doctor` checks them.

Whatever calls the API server is listed here with its reason; a test acts with exactly these rights.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

Purpose = Literal["sandboxes", "exec-bridge", "looking", "reaper"]
Scope = Literal["namespace", "cluster"]


@dataclass(frozen=True, slots=True)
class Right:
    """Some verbs on one kind of object."""

    purpose: Purpose
    resource: str
    """With its subresource after a slash."""
    verbs: tuple[str, ...]
    why: str
    group: str = ""
    scope: Scope = "namespace"


_ADMISSION: Final = "admissionregistration.k8s.io"

RIGHTS: Final = (
    Right("sandboxes", "pods", ("create",), "a sandbox is a pod"),
    Right("sandboxes", "pods", ("get",), "to know that a deletion is done, and what became of a create whose answer was lost"),
    Right("sandboxes", "pods", ("list", "watch"), "to learn of pods that end by themselves or never start; listings"),
    Right("sandboxes", "pods", ("delete", "deletecollection"), "nothing is left behind, by this client or by dead ones"),
    Right("sandboxes", "leases", ("create", "patch"), "to say that this client lives", "coordination.k8s.io"),
    Right("sandboxes", "leases", ("get", "list", "delete"), "to find dead clients and end their leases", "coordination.k8s.io"),
    Right("sandboxes", "events", ("list",), "to say why a pod does not start (no image, no room)"),
    # Which of the two verbs an upgrade to a web socket needs has changed between versions of Kubernetes.
    Right("exec-bridge", "pods/exec", ("get", "create"), "links through the API server, for clients that pods cannot reach"),
    Right("looking", "namespaces", ("get",), "the pod security level, and labels that webhooks select by", scope="cluster"),
    Right(
        "looking",
        "nodes",
        ("list",),
        "versions, pods a node takes, address ranges; whether one that a spec names is there",
        scope="cluster",
    ),
    Right("looking", "resourcequotas", ("list",), "what they leave, and what they cost"),
    Right("looking", "limitranges", ("list",), "what they change in pods"),
    Right("looking", "runtimeclasses", ("list",), "which there are", "node.k8s.io", "cluster"),
    Right(
        "looking",
        "mutatingwebhookconfigurations",
        ("list",),
        "who is asked at each create",
        "admissionregistration.k8s.io",
        "cluster",
    ),
    Right(
        "looking",
        "validatingwebhookconfigurations",
        ("list",),
        "who is asked at each create",
        "admissionregistration.k8s.io",
        "cluster",
    ),
    Right("reaper", "leases", ("list", "delete"), "to find dead clients and end their leases", "coordination.k8s.io"),
    Right("reaper", "pods", ("list", "get", "delete", "deletecollection"), "to remove what they left"),
)
"""In the order in which they are shown."""


def granted(purposes: Iterable[Purpose], scope: Scope) -> list[Right]:
    """The rights for these purposes, one entry for each kind of object, verbs put together."""
    wanted = set(purposes)
    verbs: dict[tuple[str, str], list[str]] = {}
    reasons: dict[tuple[str, str], list[str]] = {}
    for right in RIGHTS:
        if right.purpose in wanted and right.scope == scope:
            key = (right.group, right.resource)
            verbs.setdefault(key, []).extend(verb for verb in right.verbs if verb not in verbs.get(key, ()))
            reasons.setdefault(key, []).append(right.why)
    return [
        Right("sandboxes", resource, tuple(found), "; ".join(reasons[group, resource]), group, scope)
        for (group, resource), found in verbs.items()
    ]
