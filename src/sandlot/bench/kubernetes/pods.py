"""The pods that a benchmark asks for: where they go, and the same pod without a daemon in it."""

from __future__ import annotations

import base64
import secrets
from dataclasses import replace
from typing import Any, Final

import msgspec

from sandlot.backends.base import Grant
from sandlot.backends.kubernetes.objects import OwnerReference
from sandlot.backends.kubernetes.options import LISTEN_PORT, ClusterOptions
from sandlot.backends.kubernetes.pods import PodRequest, manifest
from sandlot.bench.kubernetes.plans import Nodes, Plan
from sandlot.podoptions import PodOptions
from sandlot.spec import Spec

NAME: Final = "name-of-the-pod"
"""Stands for it in a manifest that many pods are made from."""
PAUSE: Final = ["sleep", "86400"]

_SMALL: Final = {"cpu": "10m", "memory": "16Mi"}
"""Hundreds have room on a node of two processors."""
_PLACES: Final[dict[Nodes, PodOptions]] = {
    # Without the runtime's seccomp profile, which forbids the user namespaces that reset in place needs.
    "real": PodOptions(requests=_SMALL, extra={"securityContext": {"seccompProfile": None}}),
    "fake": PodOptions(
        requests=_SMALL,
        node_selector={"type": "kwok"},
        tolerations=({"key": "kwok.x-k8s.io/node", "operator": "Exists"},),
    ),
}


def spec(image: str, nodes: Nodes) -> Spec:
    """What every sandbox of a benchmark is: small, so that many fit."""
    return Spec(image=image, cpu=1, memory="64MiB", shm="64MiB", network="host", pod=_PLACES[nodes])


def named(spec: Spec, name: str) -> Spec:
    """The same with a hostname of its own, by which a command inside says which sandbox it runs in."""
    return replace(spec, hostname=name)


def options(plan: Plan) -> ClusterOptions:
    """How the clients of a plan use the cluster."""
    return ClusterOptions(
        namespace=plan.namespace,
        connect=plan.connect,
        advertise=plan.advertise,
        delivery=plan.delivery,
        daemon_image=plan.daemon_image or None,
    )


def plain_manifest(plan: Plan, lease: OwnerReference) -> bytes:
    """The backend's pod, byte for byte but for what the task's container runs; `NAME` stands for the name."""
    wanted = PodRequest(
        name=NAME,
        spec=named(spec(plan.image, plan.nodes), NAME),
        grant=Grant(),
        image=plan.image,
        client=plan.mark,
        lease=lease,
        mark=secrets.token_hex(4),
        environment=_environment(),
    )
    pod: dict[str, Any] = msgspec.json.decode(manifest(wanted, options(plan)))
    pod["spec"]["containers"][0]["command"] = PAUSE
    return msgspec.json.encode(pod)


def _environment() -> dict[str, str]:
    """What a daemon would be told, with secrets that open nothing."""
    key = base64.urlsafe_b64encode(bytes(32)).rstrip(b"=").decode()
    return {"SANDLOT_ENROL": key, "SANDLOT_KEY": key, "SANDLOT_LISTEN": str(LISTEN_PORT), "SANDLOT_GRACE_MS": "300000"}
