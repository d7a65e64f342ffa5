"""What statuses and events of pods mean, on documents as real nodes and schedulers wrote them (`statuses.json`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sandlot import errors
from sandlot.backends.kubernetes import status
from sandlot.backends.kubernetes.objects import EventSeen, Pod
from sandlot.protocol.codes import GONE_REASONS

RECORDED: dict[str, Any] = json.loads(Path(__file__).with_name("statuses.json").read_text())

TROUBLES: dict[str, tuple[type[errors.SandlotError], str, str] | None] = {
    "bad-workdir": (errors.ImageInvalid, "none", "not a directory"),
    "deadline": (errors.SandboxGone, "none", "DeadlineExceeded"),
    "ended": (errors.ImageInvalid, "none", "no such file"),
    "exit-2": (errors.SandboxGone, "none", "exit code 2"),
    "full-disk": (errors.SandboxGone, "none", "Evicted"),
    "image-missing": (errors.ImageNotFound, "none", "127.0.0.1:23008/nothing:here"),
    "image-name-invalid": (errors.ImageNotFound, "none", "Not A Name!"),
    "image-never": (errors.ImageNotFound, "none", "not present"),
    "init-failed": (errors.DaemonFault, "none", "no room"),
    "init-image-missing": (errors.ImageNotFound, "none", "not found"),
    "killed": (errors.SandboxGone, "none", "exit code 0"),
    "must-not-be-root": (errors.BadRequest, "none", "runAsNonRoot"),
    "no-command": (errors.Unsupported, "none", "/sandlot/sandlotd"),
    "no-cpu": (errors.Capacity, "schedule", "Insufficient cpu"),
    "no-hostpath": (errors.Unsupported, "none", "/no/such/dir"),
    "no-node": (errors.Capacity, "schedule", "affinity/selector"),
    "no-secret": (errors.BadRequest, "none", "nosuch"),
    "no-user": None,
    "oom": (errors.SandboxGone, "none", "OOMKilled"),
    "out-of-cpu": (errors.Capacity, "none", "OutOfcpu"),
    "registry-down": (errors.NotReady, "pull", "connection refused"),
    "running": None,
    "tag-missing": (errors.ImageNotFound, "none", "busybox:nosuch"),
    "volume-image-missing": (errors.ImageNotFound, "none", "not found"),
}
ENDINGS = {
    "deadline": "lifetime",
    "ended": "exited",
    "exit-2": "exited",
    "full-disk": "evicted",
    "killed": "exited",
    "oom": "oom",
    "running": None,
    "no-cpu": None,
    "image-missing": None,
}


def recorded(name: str) -> tuple[Pod, list[EventSeen]]:
    one = RECORDED[name]
    return msgspec.convert(one["pod"], Pod), msgspec.convert(one["events"], list[EventSeen])


def pod(*, deleted: str | None = None, **told: Any) -> Pod:
    """A pod with this status."""
    return msgspec.convert({"metadata": {"name": "p", "deletionTimestamp": deleted}, "status": told}, Pod)


def waiting(reason: str, message: str, image: str = "r.example/app:1") -> Pod:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(phase="Pending", containerStatuses=[{"name": "task", "image": image, "state": state}])


def test_a_user_that_the_image_does_not_have_is_the_callers_fault() -> None:
    """The daemon's last words say so: no other pod would fare better."""
    state = {
        "terminated": {"exitCode": 1, "reason": "Error", "message": 'sandlotd pod: UserUnknown: no user "eve" in this image\n'}
    }
    found = status.trouble(pod(phase="Failed", containerStatuses=[{"name": "task", "image": "i", "state": state}]))
    assert found is not None
    assert (type(found.error), found.error.message) == (errors.BadRequest, 'no user "eve" in this image')


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_trouble_is_recognised_in_real_documents(name: str) -> None:
    """Each recorded pod has the failure it was made for: its class, whether it may pass, and the words of the cluster."""
    found = status.trouble(*recorded(name))
    expected = TROUBLES[name]
    if expected is None:
        assert found is None
    else:
        assert found is not None
        assert (type(found.error), found.patience) == expected[:2]
        assert expected[2] in found.error.message


@pytest.mark.parametrize("name", sorted(ENDINGS))
def test_end_is_recognised_in_real_documents(name: str) -> None:
    """Why a sandbox ended, or that it has not."""
    ending = status.ended(recorded(name)[0])
    assert (ending.why if ending is not None else None) == ENDINGS[name]


@pytest.mark.parametrize(
    ("reason", "why"),
    [
        ("PreemptionByScheduler", "evicted"),
        ("EvictionByEvictionAPI", "evicted"),
        ("TerminationByKubelet", "evicted"),
        ("DeletionByTaintManager", "node_lost"),
        ("DeletionByPodGC", "node_lost"),
        ("SomethingNew", "evicted"),
    ],
)
def test_disruptions_name_their_reason(reason: str, why: str) -> None:
    """A pod that the cluster takes away and deletes: its condition says who did it."""
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "message": "it had to go"}
    taken = pod(phase="Running", conditions=[condition], deleted="2026-01-01T00:00:00Z")
    assert status.deleted(taken) == status.Ending(why, f"{reason}: it had to go")


def test_deletion_by_somebody_else_is_said_so() -> None:
    """Without a condition, somebody deleted the pod."""
    ending = status.deleted(pod(phase="Running"))
    assert ending.why == "killed"
    assert "somebody else" in ending.detail


@pytest.mark.parametrize("reason", ["NodeLost", "NodeShutdown", "Terminated"])
def test_lost_nodes_are_lost_nodes(reason: str) -> None:
    """A pod that failed with its node."""
    ending = status.ended(pod(phase="Failed", reason=reason))
    assert ending is not None
    assert ending.why == "node_lost"


@pytest.mark.parametrize("code", [{"exitCode": 137, "reason": "Error"}, {"exitCode": 0, "signal": 9, "reason": "Error"}])
def test_killed_daemon_is_told_from_one_that_ended(code: dict[str, Any]) -> None:
    """Death by SIGKILL is `killed`, whichever way the runtime writes it."""
    ending = status.ended(pod(phase="Failed", containerStatuses=[{"name": "task", "state": {"terminated": code}}]))
    assert ending is not None
    assert ending.why == "killed"


def test_end_of_a_sidecar_is_not_the_sandboxs() -> None:
    """Only the task's container counts while the pod's phase says nothing."""
    done = {"name": "helper", "state": {"terminated": {"exitCode": 1}}}
    assert status.ended(pod(phase="Running", containerStatuses=[done])) is None


@pytest.mark.parametrize(
    ("message", "kind", "patience"),
    [
        ("failed to resolve image: r.example/app:1: not found", errors.ImageNotFound, "none"),
        ("manifest unknown: manifest unknown", errors.ImageNotFound, "none"),
        ("pull access denied, repository does not exist or may require authorization", errors.ImageNotFound, "none"),
        ("unexpected status from HEAD request: 401 Unauthorized", errors.ImageNotFound, "none"),
        ("no match for platform in manifest: not found", errors.ImageInvalid, "none"),
        ("pull QPS exceeded", errors.NotReady, "pull"),
        ("unexpected status from GET request: 503 Service Unavailable", errors.NotReady, "pull"),
        ("dial tcp: lookup r.example: no such host", errors.NotReady, "pull"),
        ("context deadline exceeded", errors.NotReady, "pull"),
        ("", errors.NotReady, "pull"),
    ],
)
def test_failed_pulls_are_told_apart(message: str, kind: type[errors.SandlotError], patience: str) -> None:
    """What is not there fails at once and for good; what a registry or network did may pass."""
    for reason in ("ErrImagePull", "ImagePullBackOff"):
        found = status.trouble(waiting(reason, message))
        assert found is not None
        assert (type(found.error), found.patience) == (kind, patience)


def test_names_of_images_are_not_read_as_reasons() -> None:
    """An image may be called `forbidden:403`, and its registry be down all the same."""
    image = "r.example/denied:/forbidden:403"
    message = f'failed to pull image "{image}": Head "https://r.example/v2/forbidden/manifests/403": connection refused {image}'
    found = status.trouble(waiting("ErrImagePull", message, image))
    assert found is not None
    assert isinstance(found.error, errors.NotReady)


def test_missing_daemon_image_says_how_to_push_it() -> None:
    """The hint names the image with the daemon when it is that one."""
    found = status.trouble(waiting("ErrImagePull", 'image "r/sandlotd:1": not found'), daemon_image="r/sandlotd:1")
    assert found is not None
    assert "push-daemon" in found.error.hint


def test_text_from_the_cluster_is_one_bounded_printable_line() -> None:
    """Nodes and registries wrote it: no control characters, no end of lines, no megabytes."""
    found = status.trouble(waiting("ErrImagePull", "\x1b[2Jnot found\n" + "x" * 100_000))
    assert found is not None
    assert found.error.message.isprintable()
    assert len(found.error.message) < 1000


def test_deletion_while_starting_is_trouble() -> None:
    """Somebody deletes a pod that is not yet usable."""
    found = status.trouble(pod(phase="Pending", deleted="2026-01-01T00:00:00Z"))
    assert found is not None
    assert isinstance(found.error, errors.SandboxGone)


@pytest.mark.parametrize(
    ("reason", "message", "kind", "patience"),
    [
        ("FailedCreatePodSandBox", "plugin failed: no IP addresses available in range set", errors.Capacity, "start"),
        ("FailedCreatePodSandBox", 'no runtime for "gvisor" is configured', errors.Unsupported, "none"),
        ("FailedCreatePodSandBox", "failed to create shim: context deadline exceeded", errors.NotReady, "start"),
        ("FailedMount", "MountVolume.SetUp failed: timed out", errors.NotReady, "start"),
    ],
)
def test_events_tell_what_the_status_does_not(
    reason: str, message: str, kind: type[errors.SandlotError], patience: str
) -> None:
    """While a node makes the pod, its status says ContainerCreating and nothing else."""
    events = [
        EventSeen(type="Normal", reason="Scheduled", message="x"),
        EventSeen(type="Warning", reason=reason, message=message),
    ]
    found = status.trouble(waiting("ContainerCreating", ""), events)
    assert found is not None
    assert (type(found.error), found.patience) == (kind, patience)


def test_every_why_is_of_the_closed_set() -> None:
    """What is reported here is what `SandboxGone` may say."""
    tables = (status.PHASE_REASONS, status.DISRUPTIONS, status.CONTAINER_REASONS)
    whys = {why for table in tables for why in table.values()} | {why for why, _ in status.DAEMON_EXITS.values()}
    assert whys <= GONE_REASONS
