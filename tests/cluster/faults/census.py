"""Counts from outside what clients have left: objects in the API server, containers and processes on the node."""

from __future__ import annotations

import time
from dataclasses import dataclass

from cluster import Cluster

LOOK_S = 0.25


@dataclass(frozen=True, slots=True)
class Census:
    """What there is of one namespace."""

    pods: tuple[str, ...]
    leases: tuple[str, ...]
    containers: tuple[str, ...]
    """What containerd keeps, the holders of namespaces included."""

    def __bool__(self) -> bool:
        return bool(self.pods or self.leases or self.containers)


def census(cluster: Cluster, namespace: str, *, client: str | None = None) -> Census:
    """Of one client where `client` is said; containers are then those of the pods that it has."""
    query = "" if client is None else f"?labelSelector=sandlot.dev/client={client}"
    with cluster.api() as api:
        pods = api.get(f"/api/v1/namespaces/{namespace}/pods{query}")["items"]
        leases = api.get(f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases{query}")["items"]
    names = tuple(sorted(pod["metadata"]["name"] for pod in pods))
    inside = [one for one in cluster.containers() if one.namespace == namespace]
    return Census(
        pods=names,
        leases=tuple(sorted(lease["metadata"]["name"] for lease in leases)),
        containers=tuple(sorted({one.pod for one in inside if client is None or one.pod in names})),
    )


def wait_nothing(cluster: Cluster, namespace: str, within_s: float, *, client: str | None = None) -> Census:
    """What is left after `within_s` seconds at most: at best, nothing."""
    end = time.monotonic() + within_s
    while found := census(cluster, namespace, client=client):
        if time.monotonic() >= end:
            break
        time.sleep(LOOK_S)
    return found


def wait_without_containers(cluster: Cluster, namespace: str, within_s: float) -> Census:
    """Until the node runs nothing of this namespace, or `within_s` seconds have passed; what there is then."""
    end = time.monotonic() + within_s
    while (found := census(cluster, namespace)).containers and time.monotonic() < end:
        time.sleep(LOOK_S)
    return found
