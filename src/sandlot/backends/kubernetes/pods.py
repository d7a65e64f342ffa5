"""From a wanted sandbox to the JSON of its pod. Pure; the smallest pod that does it, since each part costs time on the node.

No probe, no service-account token, no service links, no volume but the daemon's (and those of /dev/shm and of a read-only
system where asked): what each of them would cost is in docs/kubernetes.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from sandlot.backends.base import Grant
from sandlot.backends.kubernetes import merging, naming
from sandlot.backends.kubernetes.objects import OwnerReference
from sandlot.backends.kubernetes.options import ClusterOptions
from sandlot.backends.kubernetes.suspects import avoiding
from sandlot.errors import BadRequest, LimitUnenforceable
from sandlot.podoptions import thawed
from sandlot.spec import Spec

Json = dict[str, Any]

TASK: Final = "task"
"""The container that runs the task's image. It is the first."""
MOUNT: Final = "/sandlot"
COMMAND: Final = (f"{MOUNT}/sandlotd", "pod")
OURS: Final = "SANDLOT_"
"""How the daemon's own variables begin; it takes them out of what commands get."""

RUNTIME_SHM_BYTES: Final = 64 * 2**20  # what container runtimes give without being asked
USUAL_CPU_MILLIS: Final = 100  # what the scheduler assumes of pods without a request (DefaultMilliCPURequest)
USUAL_PIDS: Final = Spec().pids
LONGEST_S: Final = 2**31 - 1  # of `activeDeadlineSeconds`
LAST_WORDS: Final = "FallbackToLogsOnError"  # why a daemon could not begin is in the pod's status, at no right to logs
_UID: Final = re.compile(r"(\d{1,10})(?::(\d{1,10}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRequest:
    """One pod that is wanted."""

    name: str
    spec: Spec
    grant: Grant
    image: str
    """What the node shall pull, as `spec.image` was resolved."""
    client: str
    lease: OwnerReference
    """The Lease that the pod belongs to: the cluster deletes what belongs to a Lease that is gone."""
    mark: str
    """A random word of this create."""
    avoid: tuple[str, ...] = ()
    """Nodes that shall rather not have it."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What the daemon needs for its link. Holds a secret."""


def manifest(request: PodRequest, options: ClusterOptions) -> bytes:
    """The pod as JSON.

    Raises:
        BadRequest: something of the spec cannot be said in a pod.
        LimitUnenforceable: a limit on processes was asked for, which only a node's own configuration can set.
    """
    naming.check_dns_label(request.name, "sandbox name")
    pod = _pod_spec(request, options)
    merging.merge(pod, request.spec.pod.extra)
    return msgspec.json.encode({"apiVersion": "v1", "kind": "Pod", "metadata": _metadata(request), "spec": pod})


def unenforced(spec: Spec) -> tuple[str, ...]:
    """Limits of this spec that a pod cannot hold. Raises LimitUnenforceable where the caller insists on one.

    How many processes a pod may have is the kubelet's `podPidsLimit` and nothing in a pod can change it. The default of
    `Spec.pids` is nobody's wish, so it is let pass and named; a number that was chosen is refused under `limits="require"`.
    """
    if spec.pids is None:
        return ()
    if spec.limits == "require" and spec.pids != USUAL_PIDS:
        raise LimitUnenforceable(
            f"a limit of {spec.pids} processes cannot be set for one pod",
            hint='use limits="best-effort", or set podPidsLimit on the nodes and pids=None here',
        )
    return ("pids",)


# --- metadata ---------------------------------------------------------------------------------------------------------
def _metadata(request: PodRequest) -> Json:
    spec, lease = request.spec, request.lease
    labels, notes = naming.labels(spec.labels)
    labels |= {
        naming.KIND: "sandbox",
        naming.CLIENT: request.client,
        naming.OWNER: request.grant.owner,
        naming.SHARD: naming.shard(request.name),
        naming.NETWORK: spec.network,
        naming.CREATE: request.mark,
    }
    owner = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": lease.name, "uid": lease.uid}
    return {
        "name": request.name,
        "labels": labels,
        "annotations": {**spec.pod.annotations, **notes, naming.IMAGE_NOTE: spec.image},
        "ownerReferences": [owner],
    }


# --- spec -------------------------------------------------------------------------------------------------------------
def _pod_spec(request: PodRequest, options: ClusterOptions) -> Json:
    spec, wanted = request.spec, request.spec.pod
    lifetime_s = request.grant.max_lifetime_s if request.grant.max_lifetime_s is not None else options.max_lifetime_s
    pod: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "activeDeadlineSeconds": min(max(1, math.ceil(lifetime_s)), LONGEST_S),
        "hostname": naming.check_dns_label(spec.hostname, "hostname"),
        "containers": [_container(request)],
    }
    asked: Json = {
        "nodeSelector": wanted.node_selector,
        "tolerations": wanted.tolerations,
        "affinity": avoiding(wanted.affinity, request.avoid),
        "runtimeClassName": wanted.runtime_class,
        "imagePullSecrets": [{"name": name} for name in wanted.pull_secrets],
        "serviceAccountName": wanted.service_account,
        "schedulerName": wanted.scheduler,
        "priorityClassName": wanted.priority_class,
        "securityContext": _pod_security(spec),
    }
    pod |= {name: thawed(value) for name, value in asked.items() if value}
    if wanted.host_users is not None:
        pod["hostUsers"] = wanted.host_users
    _deliver(pod, spec, options)
    _add_scratch(pod, spec)
    return pod


def _container(request: PodRequest) -> Json:
    spec = request.spec
    container: Json = {
        "name": TASK,
        "image": request.image,
        "imagePullPolicy": spec.pod.pull_policy,
        "command": list(COMMAND),
        "terminationMessagePolicy": LAST_WORDS,
        "env": _environment(request),
        "resources": _resources(spec),
        "securityContext": _security(spec),
    }
    if spec.workdir is not None:
        if not spec.workdir.startswith("/"):
            raise BadRequest(f"workdir {spec.workdir!r} must be an absolute path in a pod")
        container["workingDir"] = spec.workdir
    return container


def _environment(request: PodRequest) -> list[Json]:
    spec, grant = request.spec, request.grant
    sizes = {"SANDLOT_DISK_BYTES": str(spec.disk_bytes), "SANDLOT_SHM_BYTES": str(spec.shm_bytes)}
    ours = {"SANDLOT_NAME": request.name, **sizes, **request.environment}
    if spec.user is not None and _numeric(spec) is None:
        ours["SANDLOT_USER"] = str(spec.user)
    limits = unenforced(spec)
    if limits:
        ours["SANDLOT_UNENFORCED"] = ",".join(limits)
    if grant.idle_timeout_s is not None:
        ours["SANDLOT_IDLE_MS"] = str(round(grant.idle_timeout_s * 1000))
    return [{"name": name, "value": value} for name, value in ours.items()] + [_variable(*one) for one in spec.env.items()]


def _variable(name: str, value: str) -> Json:
    if name.startswith(OURS):
        raise BadRequest(f"the variable {name!r} is one of Sandlot's own", hint=f"choose a name without {OURS}")
    try:
        f"{name}{value}".encode()
    except UnicodeEncodeError as error:
        raise BadRequest(f"the variable {name!r} is no text in UTF-8, which pods need") from error
    if not name.isprintable() or not name.isascii():
        raise BadRequest(f"the variable {name!r} has a name that pods cannot have", hint="use printable ASCII")
    # The kubelet replaces $(NAME) and takes $$ for a dollar sign: what the caller wrote is meant as it stands.
    return {"name": name, "value": value.replace("$", "$$")}


def _resources(spec: Spec) -> Json:
    limits: Json = {"ephemeral-storage": str(spec.disk_bytes)}
    requests: Json = {"ephemeral-storage": "0"}
    if spec.memory_bytes is not None:
        limits["memory"] = requests["memory"] = str(spec.memory_bytes)
    if spec.cpu is not None:
        millis = max(1, round(spec.cpu * 1000))
        limits["cpu"], requests["cpu"] = f"{millis}m", f"{min(millis, USUAL_CPU_MILLIS)}m"
    for name in spec.pod.limits:
        if name in ("cpu", "memory", "ephemeral-storage"):
            raise BadRequest(f"the limit on {name} is a field of the spec", hint="use cpu, memory or disk")
    limits |= {name: str(value) for name, value in spec.pod.limits.items()}
    requests |= {name: str(value) for name, value in spec.pod.requests.items()}
    return {"limits": limits, "requests": requests}


def _security(spec: Spec) -> Json:
    """What the container may do: as containers usually may, less raw sockets and devices."""
    restricted = spec.pod.security == "restricted"
    context: Json = {"capabilities": {"drop": ["ALL"] if restricted else ["NET_RAW", "MKNOD"]}}
    if restricted:
        context |= {"allowPrivilegeEscalation": False, "runAsNonRoot": True}
    if spec.read_only:
        context["readOnlyRootFilesystem"] = True
    ids = _numeric(spec)
    if ids is not None:
        context["runAsUser"] = ids[0]
        if ids[1] is not None:
            context["runAsGroup"] = ids[1]
    return context


def _pod_security(spec: Spec) -> Json:
    """The runtime's own filter of system calls, where the daemon cannot bring its own.

    The runtime's forbids user namespaces, and with them every reset in place. Root's daemon makes one, and gives commands a
    filter that is stricter (decision 7); a pod that is not root's can have neither.
    """
    ids = _numeric(spec)
    is_root = spec.pod.security == "baseline" and (ids is None or ids[0] == 0)
    return {} if is_root else {"seccompProfile": {"type": "RuntimeDefault"}}


def _numeric(spec: Spec) -> tuple[int, int | None] | None:
    """The spec's user where it is a number, which the node itself can set; names are only known inside the image."""
    match = _UID.fullmatch(str(spec.user)) if spec.user is not None else None
    return None if match is None else (int(match[1]), None if match[2] is None else int(match[2]))


# --- volumes ----------------------------------------------------------------------------------------------------------
def _deliver(pod: Json, spec: Spec, options: ClusterOptions) -> None:
    """Bring the daemon in."""
    mount: Json = {"name": "sandlot", "mountPath": MOUNT, "readOnly": True}
    if options.delivery == "hostpath":
        volume: Json = {"name": "sandlot", "hostPath": {"path": options.daemon_path, "type": "Directory"}}
    elif options.daemon_image is None:
        raise BadRequest(
            "no image is named that holds the daemon", hint="say daemon_image=, or push one: sandlot image push-daemon"
        )
    elif options.delivery == "image":
        volume = {"name": "sandlot", "image": {"reference": options.daemon_image, "pullPolicy": spec.pod.pull_policy}}
    else:
        volume = {"name": "sandlot", "emptyDir": {}}
        pod["initContainers"] = [_installer(options.daemon_image, spec)]
    pod["volumes"] = [volume]
    pod["containers"][0]["volumeMounts"] = [mount]


def _installer(image: str, spec: Spec) -> Json:
    return {
        "name": "sandlot",
        "image": image,
        "imagePullPolicy": spec.pod.pull_policy,
        "command": ["/sandlotd", "install", MOUNT],
        "terminationMessagePolicy": LAST_WORDS,
        "volumeMounts": [{"name": "sandlot", "mountPath": MOUNT}],
        "securityContext": _security(spec),
    }


def _add_scratch(pod: Json, spec: Spec) -> None:
    """Memory-backed places: /dev/shm where it shall not have the runtime's size, /tmp and /run of a read-only system."""
    places: list[tuple[str, str, int]] = []
    if spec.shm_bytes != RUNTIME_SHM_BYTES:
        places.append(("sandlot-shm", "/dev/shm", spec.shm_bytes))
    if spec.read_only:
        places += [("sandlot-tmp", "/tmp", spec.disk_bytes), ("sandlot-run", "/run", spec.disk_bytes)]
    for name, path, size in places:
        pod["volumes"].append({"name": name, "emptyDir": {"medium": "Memory", "sizeLimit": str(size)}})
        pod["containers"][0]["volumeMounts"].append({"name": name, "mountPath": path})
