"""The parts of Kubernetes' objects that are used, and no others: what is not named here is skipped, not decoded.

All of it comes from a server and partly from images and nodes: text is shown and never obeyed.
"""

from __future__ import annotations

import msgspec


class Object(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Base of all shapes."""


class OwnerReference(Object):
    kind: str = ""
    name: str = ""
    uid: str = ""


class Metadata(Object):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}


class Condition(Object):
    type: str = ""
    status: str = ""
    reason: str | None = None
    message: str | None = None


class Waiting(Object):
    reason: str | None = None
    message: str | None = None


class Running(Object):
    started_at: str | None = None


class Terminated(Object):
    exit_code: int = 0
    signal: int | None = None
    reason: str | None = None
    message: str | None = None


class ContainerState(Object):
    waiting: Waiting | None = None
    running: Running | None = None
    terminated: Terminated | None = None


class ContainerStatus(Object):
    name: str = ""
    image: str = ""
    ready: bool = False
    state: ContainerState = ContainerState()


class PodStatus(Object):
    phase: str = ""
    reason: str | None = None
    message: str | None = None
    pod_ip: str | None = msgspec.field(default=None, name="podIP")
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None
    init_container_statuses: list[ContainerStatus] | None = None


class PodSpec(Object):
    node_name: str | None = None


class Pod(Object):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class EventSeen(Object):
    """A core/v1 Event about a pod."""

    type: str = ""
    reason: str | None = None
    message: str | None = None


class LeaseSpec(Object):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    renew_time: str | None = None


class Lease(Object):
    metadata: Metadata = Metadata()
    spec: LeaseSpec = LeaseSpec()


class ListMeta(Object):
    resource_version: str = ""
    continue_: str | None = msgspec.field(default=None, name="continue")


class PodList(Object):
    metadata: ListMeta = ListMeta()
    items: list[Pod] = []


class LeaseList(Object):
    metadata: ListMeta = ListMeta()
    items: list[Lease] = []


class EventList(Object):
    items: list[EventSeen] = []


class Named(Object):
    """An object of which only the name matters."""

    metadata: Metadata = Metadata()


class NamedList(Object):
    metadata: ListMeta = ListMeta()
    items: list[Named] = []


class Cause(Object):
    reason: str | None = None
    message: str | None = None
    field: str | None = None


class StatusDetails(Object):
    name: str | None = None
    kind: str | None = None
    causes: list[Cause] | None = None
    retry_after_seconds: int | None = None


class Status(Object):
    """What the API server says instead of an object."""

    kind: str = ""
    status: str | None = None
    message: str | None = None
    reason: str | None = None
    details: StatusDetails | None = None
    code: int | None = None


class WatchEvent(Object):
    """One line of a watch; `object` is decoded when the type is known."""

    type: str
    object: msgspec.Raw
