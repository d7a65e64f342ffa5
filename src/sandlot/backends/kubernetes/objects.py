"""The parts of Kubernetes' objects that are used, and no others: what is not named here is skipped, not decoded.

All of it comes from a server and partly from images and nodes: text is shown and never obeyed.
"""

from __future__ import annotations

from typing import Literal

import msgspec


class Object(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of all shapes."""


class OwnerReference(Object, frozen=True):
    kind: str = ""
    name: str = ""
    uid: str = ""


class SeenMetadata(Object, frozen=True):
    """What a watch looks at."""

    name: str = ""
    uid: str = ""
    resource_version: str = ""
    deletion_timestamp: str | None = None


class Metadata(SeenMetadata, frozen=True):
    namespace: str = ""
    creation_timestamp: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)


class Condition(Object, frozen=True):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class Waiting(Object, frozen=True):
    reason: str | None = None
    message: str | None = None


class Running(Object, frozen=True):
    started_at: str | None = None


class Terminated(Object, frozen=True):
    exit_code: int = 0
    signal: int | None = None
    reason: str | None = None
    message: str | None = None


class ContainerState(Object, frozen=True):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Object, frozen=True):
    name: str = ""
    image: str = ""
    ready: bool = False
    state: ContainerState = ContainerState()


class PodStatus(Object, frozen=True):
    phase: str = ""
    reason: str | None = None
    message: str | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    conditions: tuple[Condition, ...] | None = None
    container_statuses: tuple[ContainerStatus, ...] | None = None
    init_container_statuses: tuple[ContainerStatus, ...] | None = None


class Gate(Object, frozen=True):
    name: str = ""


class PodSpec(Object, frozen=True):
    node_name: str | None = None
    scheduler_name: str = ""
    scheduling_gates: tuple[Gate, ...] | None = None


class SeenPod(Object, frozen=True):
    """What a watch looks at."""

    metadata: SeenMetadata = SeenMetadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Pod(SeenPod, frozen=True):
    metadata: Metadata = Metadata()


class Involved(Object, frozen=True):
    uid: str = ""


class EventSeen(Object, frozen=True):
    """A core/v1 Event about a pod."""

    type: str = ""
    reason: str | None = None
    message: str | None = None
    involved_object: Involved = Involved()


class LeaseSpec(Object, frozen=True):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class Lease(Object, frozen=True):
    metadata: Metadata = Metadata()
    spec: LeaseSpec = LeaseSpec()


class ListMeta(Object, frozen=True):
    resource_version: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


class PodList(Object, frozen=True):
    metadata: ListMeta = ListMeta()
    items: tuple[Pod, ...] = ()


class LeaseList(Object, frozen=True):
    metadata: ListMeta = ListMeta()
    items: tuple[Lease, ...] = ()


class EventList(Object, frozen=True):
    metadata: ListMeta = ListMeta()
    items: tuple[EventSeen, ...] = ()


class Named(Object, frozen=True):
    """An object of which only the name matters."""

    metadata: Metadata = Metadata()


class NamedList(Object, frozen=True):
    metadata: ListMeta = ListMeta()
    items: tuple[Named, ...] = ()


class Cause(Object, frozen=True):
    reason: str | None = None
    message: str | None = None
    field: str | None = None


class StatusDetails(Object, frozen=True):
    name: str | None = None
    kind: str | None = None
    causes: tuple[Cause, ...] | None = None
    retry_after_seconds: int | None = None


class Status(Object, frozen=True):
    """What the API server says instead of an object."""

    kind: str = ""
    status: str | None = None
    message: str | None = None
    reason: str | None = None
    details: StatusDetails | None = None
    code: int | None = None


class WatchEvent(Object, frozen=True):
    """One line of a watch; `object` is decoded when the type is known."""

    type: str
    object: msgspec.Raw


class PodEvent(Object, frozen=True):
    """A line that tells of a pod, in one pass: events have 5 KB each, and every pod has three or more."""

    type: Literal["ADDED", "MODIFIED", "DELETED"]
    object: SeenPod
