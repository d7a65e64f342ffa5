"""Counts from outside what clients have left: objects in the API server, containers and processes on the node."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from cluster import Cluster
from tests.cluster.faults.clients import PROMISE_S
from tests.patience import Patience

LOOK_S = 0.25
Kind = Literal["pods", "leases", "containers", "processes"]
EVERYTHING: Final[tuple[Kind, ...]] = ("pods", "leases", "containers", "processes")
ON_NODE: Final[tuple[Kind, ...]] = ("containers", "processes")
SANDBOXES: Final[tuple[Kind, ...]] = ("pods", "containers", "processes")
"""A client that lives has its Lease."""


@dataclass(frozen=True, slots=True)
class Census:
    """What there is of one namespace."""

    pods: tuple[str, ...]
    leases: tuple[str, ...]
    containers: tuple[str, ...]
    """Pods of which containerd keeps something, the holders of namespaces included."""
    processes: tuple[int, ...]
    """In the control groups of all pods that the namespace ever had on the real node."""

    def __bool__(self) -> bool:
        return bool(self.pods or self.leases or self.containers or self.processes)

    def only(self, kinds: Collection[Kind]) -> Census:
        """Without what is of another kind."""
        others: dict[str, Any] = {kind: () for kind in EVERYTHING if kind not in kinds}
        return replace(self, **others)


@dataclass(frozen=True, slots=True)
class Left:
    """What was left at last, and how long it took until then."""

    census: Census
    after_s: float
    counted_s: float
    """The part of it that counts: see `Patience`."""

    def __bool__(self) -> bool:
        return bool(self.census)

    def __str__(self) -> str:
        what = str(self.census) if self else "nothing"
        return f"{what} after {self.after_s:.1f} s, of which {self.counted_s:.1f} s count"


def census(cluster: Cluster, namespace: str, *, client: str | None = None, names: Collection[str] = ()) -> Census:
    """Of one client where `client` is said: of the pods that it has now, and of those called `names`, which it had."""
    query = "" if client is None else f"?labelSelector=sandlot.dev/client={client}"
    with cluster.api() as api:
        pods = api.get(f"/api/v1/namespaces/{namespace}/pods{query}")["items"]
        leases = api.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases{query}")["items"]
        events = api.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    there = {pod["metadata"]["name"] for pod in pods}
    had = None if client is None else there | set(names)
    inside = [one for one in cluster.containers() if one.namespace == namespace and (had is None or one.pod in had)]
    # Nothing else remembers a pod whose object and containers are gone; each has an event of its placing, for an hour.
    told = {one["involvedObject"]["uid"] for one in events if had is None or one["involvedObject"]["name"] in had}
    uids = told | {pod["metadata"]["uid"] for pod in pods} | {one.pod_uid for one in inside}
    return Census(
        pods=tuple(sorted(there)),
        leases=tuple(sorted(lease["metadata"]["name"] for lease in leases)),
        containers=tuple(sorted({one.pod for one in inside})),
        processes=tuple(one.pid for uid, found in cluster.pod_processes().items() if uid in uids for one in found),
    )


def wait_nothing(
    cluster: Cluster,
    namespace: str,
    *,
    client: str | None = None,
    names: Collection[str] = (),
    kinds: Collection[Kind] = EVERYTHING,
    promise_s: float = PROMISE_S,
) -> Left:
    """What is left of these kinds when the promise has run out, counted from now: at best nothing, and that at once then."""
    patience = Patience(promise_s)
    while True:
        found = census(cluster, namespace, client=client, names=names).only(kinds)
        if patience.over() or not found:
            return Left(found, patience.passed_s, patience.counted_s)
        time.sleep(LOOK_S)
