"""All clients and sandboxes of a namespace, whoever made them, and what clearing up would do: for `ps` and `gc`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sandlot.backends.base import SandboxInfo
from sandlot.backends.kubernetes import naming
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.deleting import delete_pod, get_pod, wait_absent
from sandlot.backends.kubernetes.leases import SandboxLeases, collection, left_s
from sandlot.backends.kubernetes.listing import info, list_pods
from sandlot.backends.kubernetes.objects import Lease, LeaseList, Pod
from sandlot.backends.kubernetes.reaper import orphans
from sandlot.errors import SandboxGone

Fate = Literal["stays", "expired", "orphan"]
"""`expired`: its client's lease, or its own, has run out; `orphan`: there is no such lease. `gc` removes both."""


@dataclass(frozen=True, slots=True)
class ClientSeen:
    """One client, alive or not."""

    id: str
    holder: str
    """Machine and process, as it said itself."""
    lease_left_s: float | None
    """Negative when it has run out."""
    sandboxes: int

    @property
    def alive(self) -> bool:
        return self.lease_left_s is not None and self.lease_left_s > 0


@dataclass(frozen=True, slots=True)
class SandboxSeen:
    """One sandbox and whose it is."""

    info: SandboxInfo
    client: str
    node: str
    fate: Fate


@dataclass(frozen=True, slots=True)
class Survey:
    """What there is."""

    namespace: str
    clients: tuple[ClientSeen, ...]
    sandboxes: tuple[SandboxSeen, ...]


async def survey(api: Api, namespace: str) -> Survey:
    """Look once. Pods are listed before leases: a lease is older than whatever belongs to it.

    Raises:
        ApiDenied: these credentials may not list pods or leases. Infrastructure: the API server does not answer.
    """
    pods = await list_pods(api, namespace, naming.selector(kind="sandbox"))
    leases = await list_leases(api, namespace)
    return arrange(namespace, pods, leases, api.clock.now())


async def list_leases(api: Api, namespace: str) -> list[Lease]:
    """Those of clients and of leased sandboxes."""
    found: list[Lease] = []
    query = {"labelSelector": f"{naming.KIND} in (client,sandbox-lease)", "limit": "500"}
    while True:
        page = await api.get(collection(namespace), LeaseList, query=query)
        found += page.items
        if not page.metadata.continue_:
            return found
        query["continue"] = page.metadata.continue_


def arrange(namespace: str, pods: Sequence[Pod], leases: Sequence[Lease], now: float) -> Survey:
    """Pods and leases put together, by the API server's time. Pure."""
    by_name = {lease.metadata.name: lease for lease in leases}
    lost = {pod.metadata.name for pod in orphans(pods, set(by_name))}
    seen = tuple(sorted((_seen(pod, by_name, lost, now) for pod in pods), key=lambda one: one.info.created_s))
    counts: dict[str, int] = {}
    for one in seen:
        counts[one.client] = counts.get(one.client, 0) + 1
    clients = tuple(
        ClientSeen(
            id=lease.metadata.labels.get(naming.CLIENT, ""),
            holder=lease.spec.holder_identity or "",
            lease_left_s=left_s(lease, now),
            sandboxes=counts.get(lease.metadata.labels.get(naming.CLIENT, ""), 0),
        )
        for lease in leases
        if lease.metadata.labels.get(naming.KIND) == "client"
    )
    return Survey(namespace, clients, seen)


def _seen(pod: Pod, leases: dict[str, Lease], lost: set[str], now: float) -> SandboxSeen:
    client = pod.metadata.labels.get(naming.CLIENT, "")
    leased = pod.metadata.labels.get(naming.OWNER) == "leased"
    lease = leases.get(naming.sandbox_lease(pod.metadata.name) if leased else naming.client_lease(client))
    left = None if lease is None else left_s(lease, now)
    fate: Fate = "orphan" if pod.metadata.name in lost else "expired" if left is not None and left <= 0 else "stays"
    return SandboxSeen(info(pod, left if leased else None), client, pod.spec.node_name or "", fate)


async def remove_leased(api: Api, namespace: str, name: str) -> bool:
    """Remove a leased sandbox, whoever made it, before its lease ends. False when it was gone meanwhile.

    Raises:
        SandboxGone: there is no leased sandbox of this name; attached ones are their client's alone.
    """
    pod = await get_pod(api, namespace, name)
    labels = {} if pod is None else pod.metadata.labels
    if pod is None or labels.get(naming.KIND) != "sandbox" or labels.get(naming.OWNER) != "leased":
        hint = "`sandlot ps --kubernetes` lists those there are"
        raise SandboxGone(f"there is no leased sandbox named {name!r} in namespace {namespace}", hint=hint)
    existed = await delete_pod(api, namespace, name) is not None
    await wait_absent(api, namespace, name, pod.metadata.uid)
    await SandboxLeases(api, namespace, labels.get(naming.CLIENT, "")).revoke(name)
    return existed
