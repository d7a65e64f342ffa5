"""What is asked of a cluster's nodes: where they and their pods are, to find the way from them to here."""

from __future__ import annotations

from contextlib import suppress
from ipaddress import ip_network
from urllib.parse import urlsplit

import msgspec

from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.api_errors import ApiDenied, ApiError
from sandlot.backends.kubernetes.objects import ListMeta, Metadata, Object

FEW: str = "64"  # nodes that are asked: they are usually all alike


class NodeAddress(Object, frozen=True):
    type: str = ""
    address: str = ""


class NodeSpec(Object, frozen=True):
    pod_cidr: str | None = msgspec.field(default=None, name="podCIDR")


class NodeStatus(Object, frozen=True):
    addresses: tuple[NodeAddress, ...] = ()


class Node(Object, frozen=True):
    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class NodeList(Object, frozen=True):
    metadata: ListMeta = ListMeta()
    items: tuple[Node, ...] = ()


async def has_node(api: Api, name: str) -> bool | None:
    """Whether there is one of that name. None: it may not be asked, or there was no answer."""
    try:
        found = await api.get("/api/v1/nodes", NodeList, query={"fieldSelector": f"metadata.name={name}", "limit": "1"})
    except ApiError:
        return None
    return bool(found.items)


async def pod_networks(api: Api) -> list[str]:
    """Addresses to which this machine would send as to a pod: of the nodes' pod networks, of nodes, of the API server.

    Whoever may not list nodes gets the last alone.
    """
    found: list[str] = []
    with suppress(ApiDenied):
        nodes = (await api.get("/api/v1/nodes", NodeList, query={"limit": FEW})).items
        found += [str(next(ip_network(one.spec.pod_cidr, strict=False).hosts())) for one in nodes if one.spec.pod_cidr]
        found += [each.address for one in nodes for each in one.status.addresses if each.type == "InternalIP"]
    host = urlsplit(api.credentials.server).hostname
    return found + ([host] if host else [])
