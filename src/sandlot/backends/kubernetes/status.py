"""What a pod's status and events say in our terms. Pure: the object in, a typed failure or None out.

Two questions: will this pod that is starting ever be a sandbox (`trouble`), and has this one ended, and why (`ended`)?
The words are those of the kubelet, the scheduler and the node controller of Kubernetes 1.28 to 1.36.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sandlot.backends.kubernetes.objects import ContainerStatus, EventSeen, SeenPod, Terminated
from sandlot.errors import (
    BadRequest,
    Capacity,
    DaemonFault,
    ImageInvalid,
    ImageNotFound,
    NotReady,
    SandboxGone,
    SandlotError,
    Unsupported,
)

Patience = Literal["none", "schedule", "pull", "start"]
"""How long a trouble must last before it counts: some pass by themselves, and the node or the scheduler tries again."""

SHOWN_CHARS: Final = 600
TASK: Final = "task"


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a pod does not become a sandbox."""

    error: SandlotError
    patience: Patience = "none"


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a sandbox is no more: `why` is of the closed set of `SandboxGone`."""

    why: str
    detail: str


# --- has it ended? ----------------------------------------------------------------------------------------------------
PHASE_REASONS: Final = {
    "Evicted": "evicted",
    "Preempting": "evicted",
    "Preempted": "evicted",
    "DeadlineExceeded": "lifetime",
    "NodeLost": "node_lost",
    "NodeShutdown": "node_lost",
    "Shutdown": "node_lost",
    "Terminated": "node_lost",
}
"""`status.reason` of a pod that failed. The last three are what kubelets say when their node is shut down."""

DISRUPTIONS: Final = {
    "PreemptionByScheduler": "evicted",
    "EvictionByEvictionAPI": "evicted",
    "TerminationByKubelet": "evicted",
    "DeletionByTaintManager": "node_lost",
    "DeletionByPodGC": "node_lost",
}
"""Reasons of the condition `DisruptionTarget` (kubernetes.io/docs/concepts/workloads/pods/disruptions)."""

CONTAINER_REASONS: Final = {"OOMKilled": "oom", "ContainerStatusUnknown": "node_lost"}
"""`terminated.reason`. The second is said of containers that a node no longer knew when it came back."""

SIGKILL_EXIT: Final = 128 + 9


def ended(pod: SeenPod) -> Ending | None:
    """Why this pod runs no more; None while it may."""
    status = pod.status
    task = _terminated(status.container_statuses, TASK)
    if status.phase not in ("Failed", "Succeeded") and task is None:
        return None
    if status.reason in PHASE_REASONS:
        return Ending(PHASE_REASONS[status.reason], _told(status.reason, status.message))
    disrupted = disruption(pod)
    if disrupted is not None:
        return disrupted
    if task is None:
        return Ending("unknown", _told(status.reason or "it failed", status.message))
    detail = _told(task.reason or f"exit code {task.exit_code}", task.message)
    if task.reason in CONTAINER_REASONS:
        return Ending(CONTAINER_REASONS[task.reason], detail)
    if task.exit_code in DAEMON_EXITS:
        return Ending(*DAEMON_EXITS[task.exit_code])
    if task.signal is not None or task.exit_code == SIGKILL_EXIT:
        return Ending("killed", f"its daemon was killed ({detail}, exit code {task.exit_code})")
    return Ending("exited", f"its daemon ended with exit code {task.exit_code} ({detail})")


DAEMON_EXITS: Final[dict[int, tuple[str, str]]] = {
    10: ("idle", "nothing was asked of it for its idle time-out"),
    11: ("exited", "it had no link to its client for its link grace"),
    12: ("lease_expired", "its lease was not renewed"),
    143: ("killed", "its daemon was told to end (SIGTERM)"),
}
"""Exit codes of the daemon in the role `pod`, by which it says why it ended (daemon/src/pod)."""


def disruption(pod: SeenPod) -> Ending | None:
    """Why the cluster is taking this pod away, where it says so."""
    for condition in pod.status.conditions or ():
        if condition.type == "DisruptionTarget" and condition.status == "True":
            why = DISRUPTIONS.get(condition.reason or "", "evicted")
            return Ending(why, _told(condition.reason or "disruption", condition.message))
    return None


def deleted(pod: SeenPod) -> Ending:
    """Why it ended, of a pod that was deleted by others than this client."""
    return ended(pod) or disruption(pod) or Ending("killed", "its pod was deleted by somebody else")


# --- will it start? -----------------------------------------------------------------------------------------------------
NO_ROOM: Final = re.compile(
    r"OutOf\w+|UnexpectedAdmissionError|NodeAffinity|NodePorts|TopologyAffinityError|PodOSSelectorNodeLabelDoesNotMatch|AppArmor"
)
"""`status.reason` of a pod that its node refused: the scheduler's view of the node was old. It may fit elsewhere."""

NOTHING_THERE: Final = re.compile(
    r"not found|notfound|manifest.?unknown|name.?unknown|does not exist|no such image|invalid reference|could not parse ref",
    re.IGNORECASE,
)
NOT_ALLOWED: Final = re.compile(
    r"unauthorized|authentication required|authorization failed|access denied|denied:|forbidden|insufficient_scope|\b40[13]\b",
    re.IGNORECASE,
)
NO_IMAGE: Final = re.compile(
    r"no match for platform|exec format error|unsupported media type|not a valid|mismatch|failed to extract|signature",
    re.IGNORECASE,
)
CANNOT_RUN: Final = re.compile(
    r"no such file or directory|exec format error|permission denied|not a directory|chdir", re.IGNORECASE
)
NO_USER: Final = re.compile(r"sandlotd pod: UserUnknown: ([^)]+)")
"""What the daemon says when it cannot begin as the user that was asked for (daemon/src/users.rs)."""
NO_ADDRESS: Final = re.compile(r"no IP addresses available|failed to allocate|IP pool|exhausted", re.IGNORECASE)
NO_RUNTIME: Final = re.compile(r"no runtime for|RuntimeHandler|runtime handler|runtimeclass", re.IGNORECASE)

IMAGE_WAITS: Final = ("ErrImagePull", "ImagePullBackOff", "RegistryUnavailable", "ImageInspectError")


def trouble(pod: SeenPod, events: Iterable[EventSeen] = (), *, daemon_image: str | None = None) -> Trouble | None:
    """Why this pod does not become a sandbox; None while nothing speaks against it."""
    status = pod.status
    for one in status.init_container_statuses or ():
        if one.state.terminated is not None and one.state.terminated.exit_code != 0:
            return _install_failed(one.state.terminated)
    ending = ended(pod)
    if ending is not None:
        return _ended_early(pod, ending)
    if pod.metadata.deletion_timestamp is not None:
        gone = deleted(pod)
        return Trouble(SandboxGone(f"it was deleted while it started: {gone.detail}", why=gone.why))
    for one in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        found = _waiting(one, daemon_image)
        if found is not None:
            return found
    for condition in status.conditions or ():
        if (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "Unschedulable"):
            return Trouble(_no_place(condition.message or ""), "schedule")
    if status.phase == "Pending" and pod.spec.scheduling_gates:
        return Trouble(_held_back(one.name for one in pod.spec.scheduling_gates), "schedule")
    return _from_events(events)


def _ended_early(pod: SeenPod, ending: Ending) -> Trouble:
    reason, task = pod.status.reason or "", _terminated(pod.status.container_statuses, TASK)
    if NO_ROOM.fullmatch(reason):
        return Trouble(Capacity(f"its node had no room for it: {_told(reason, pod.status.message)}"))
    if task is not None and task.reason in ("StartError", "ContainerCannotRun"):
        return Trouble(_cannot_run(task.message or task.reason))
    unknown = NO_USER.search(ending.detail)
    if unknown is not None:
        return Trouble(BadRequest(unknown[1], hint="check Spec.user"))
    return Trouble(SandboxGone(f"it ended before it was usable: {ending.detail}", why=ending.why))


def _install_failed(state: Terminated) -> Trouble:
    said = _told(state.reason or f"exit code {state.exit_code}", state.message)
    if state.reason == "OOMKilled":
        return Trouble(BadRequest(f"the container that brings the daemon was killed for memory: {said}"))
    return Trouble(DaemonFault(f"the container that brings the daemon failed: {said}", hint="is the daemon image whole?"))


def _waiting(container: ContainerStatus, daemon_image: str | None) -> Trouble | None:
    waiting = container.state.waiting
    if waiting is None or waiting.reason is None:
        return None
    reason, message = waiting.reason, waiting.message or ""
    if reason == "InvalidImageName":
        return Trouble(ImageNotFound(f"the image's name is none: {_shown(message) or container.image!r}"))
    if reason == "ErrImageNeverPull":
        return Trouble(
            ImageNotFound(f"the image is not on the node: {_shown(message)}", hint='pull_policy "Never" asks for that')
        )
    if reason == "SignatureValidationFailed":
        return Trouble(ImageInvalid(f"the image's signature was refused: {_shown(message)}"))
    if reason in IMAGE_WAITS:
        return _pull_failed(message or reason, container.image, daemon_image)
    if reason == "CreateContainerConfigError":
        return Trouble(BadRequest(f"the node cannot make this container: {_shown(message)}"))
    if reason in ("CreateContainerError", "RunContainerError", "PostStartHookError", "PreCreateHookError", "PreStartHookError"):
        error = _cannot_run(message or reason)
        return Trouble(error, "start" if error.retriable else "none")
    return None


def _pull_failed(message: str, image: str, daemon_image: str | None) -> Trouble:
    said = _shown(message)
    cause = _without_names(message, image, daemon_image)
    hint = "is it written right, and does it exist?"
    if daemon_image is not None and daemon_image in message:
        hint = "that is the image with the daemon: sandlot image push-daemon"
    if NO_IMAGE.search(cause):
        return Trouble(ImageInvalid(f"the image cannot be used: {said}"))
    if NOTHING_THERE.search(cause):
        return Trouble(ImageNotFound(f"the image cannot be pulled: {said}", hint=hint))
    if NOT_ALLOWED.search(cause):
        secrets = "registries say so of private and of missing images: check the reference and PodOptions.pull_secrets"
        return Trouble(ImageNotFound(f"the registry refused the image: {said}", hint=secrets))
    hint = "the registry or the way to it failed: is its name right, does it run, and do the nodes reach it?"
    return Trouble(NotReady(f"its image could not be pulled: {said}", hint=hint), "pull")


def _without_names(message: str, *names: str | None) -> str:
    """The registry's own words: an image may well be called `denied:403`."""
    for name in names:
        message = message.replace(name, "") if name else message
    return re.sub(r'"[^"]*"|https?://\S+', "", message)


def _cannot_run(message: str) -> SandlotError:
    said = _shown(message)
    if "/sandlot/sandlotd" in message and CANNOT_RUN.search(message):
        return Unsupported(
            f"the daemon could not be started in this image: {said}",
            hint="does its delivery work? `sandlot doctor --kubernetes`",
        )
    if CANNOT_RUN.search(message):
        return ImageInvalid(f"the image's container could not be started: {said}", hint="are workdir and user possible in it?")
    return NotReady(f"its container could not be started: {said}")


def _no_place(message: str) -> SandlotError:
    return Capacity(
        f"no node can take it: {_shown(message)}", hint="wait, ask for less, or look at selectors, taints and affinity"
    )


def _held_back(gates: Iterable[str]) -> SandlotError:
    hint = "whoever put them there has to remove them; where pods queue for admission, raise ClusterOptions.unschedulable_s"
    return Capacity(f"scheduling gates hold it back: {_shown(', '.join(gates))}", hint=hint)


def _from_events(events: Iterable[EventSeen]) -> Trouble | None:
    """What only events tell: the status of a pod says nothing while its sandbox, addresses or volumes are being made."""
    for event in events:
        message = event.message or ""
        if event.type != "Warning":
            continue
        if event.reason == "FailedCreatePodSandBox":
            if NO_RUNTIME.search(message):
                return Trouble(Unsupported(f"the node lacks the runtime class: {_shown(message)}"))
            if NO_ADDRESS.search(message):
                return Trouble(Capacity(f"the node has no address left: {_shown(message)}"), "start")
            return Trouble(NotReady(f"the node could not make the pod: {_shown(message)}"), "start")
        if event.reason == "FailedMount" and "hostPath type check failed" in message:
            hint = "is the daemon in ClusterOptions.daemon_path on every node?"
            return Trouble(Unsupported(f"a directory is missing on the node: {_shown(message)}", hint=hint))
        if event.reason == "FailedResourceClaimCreation":
            return Trouble(BadRequest(f"a resource claim cannot be made: {_shown(message)}"), "schedule")
        if event.reason in ("FailedMount", "FailedAttachVolume", "FailedMapVolume"):
            return Trouble(NotReady(f"a volume could not be mounted: {_shown(message)}"), "start")
    return None


def _terminated(statuses: Sequence[ContainerStatus] | None, name: str) -> Terminated | None:
    return next((one.state.terminated for one in statuses or () if one.name == name), None)


def _told(reason: str, message: str | None) -> str:
    return _shown(f"{reason}: {message}" if message else reason)


def _shown(text: str) -> str:
    """One bounded line without control characters: nodes and registries wrote it."""
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else "?" for char in line)[:SHOWN_CHARS]
