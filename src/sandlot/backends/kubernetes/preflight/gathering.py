"""Asking the API server for facts. What may not be asked is unknown and no failure; nothing is changed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from typing import Final, Protocol, TypeVar
from urllib.parse import quote

import msgspec

from sandlot.backends.kubernetes.api import Api, Query
from sandlot.backends.kubernetes.api_errors import ApiDenied, ApiError, ApiNotFound
from sandlot.backends.kubernetes.objects import Named, NamedList, Object
from sandlot.backends.kubernetes.preflight.facts import (
    Facts,
    Kubelet,
    Node,
    Nodes,
    Quota,
    Range,
    Tried,
    Webhook,
    WebhookConfiguration,
)
from sandlot.backends.kubernetes.publishing.advertised import advertised_registry
from sandlot.backends.kubernetes.rights import RIGHTS, Right
from sandlot.errors import BadRequest, ProtocolViolation

NODES: Final = 500  # that are looked at
KUBELETS: Final = 8  # that are asked for their configuration: nodes of one kind are alike
_WEBHOOKS: Final = "/apis/admissionregistration.k8s.io/v1"
_T = TypeVar("_T")
_Item_co = TypeVar("_Item_co", covariant=True)
_GROUP_DIGITS: Final = re.compile(r"\d+")


class _Version(Object, frozen=True):
    git_version: str = ""


class _Review(Object, frozen=True):
    class Status(Object, frozen=True):
        allowed: bool = False

    status: Status = Status()


class _Quotas(Object, frozen=True):
    items: tuple[Quota, ...] = ()


class _Ranges(Object, frozen=True):
    items: tuple[Range, ...] = ()


class _Webhooks(Object, frozen=True):
    items: tuple[WebhookConfiguration, ...] = ()


class _Configz(Object, frozen=True):
    kubeletconfig: Kubelet = Kubelet()


async def gather(api: Api, namespace: str, *, tried: tuple[Tried, ...] = ()) -> Facts:
    """Everything that these credentials may see.

    Raises:
        ApiError: the API server does not answer, or takes these credentials for nobody's.
    """
    version = (await api.get("/version", _Version)).git_version
    path = f"/api/v1/namespaces/{namespace}"
    async with asyncio.TaskGroup() as group:
        missing = group.create_task(_missing_rights(api, namespace))
        home = group.create_task(_namespace(api, path))
        quotas = group.create_task(_seen(api, f"{path}/resourcequotas", _Quotas))
        ranges = group.create_task(_seen(api, f"{path}/limitranges", _Ranges))
        hooks = group.create_task(_webhooks(api))
        nodes = group.create_task(_seen(api, "/api/v1/nodes", Nodes, query={"limit": str(NODES)}))
        classes = group.create_task(_seen(api, "/apis/node.k8s.io/v1/runtimeclasses", NamedList))
        registry = group.create_task(_registry(api))
    seen = nodes.result()
    named = classes.result()
    return Facts(
        server=api.credentials.server,
        namespace=namespace,
        version=version,
        in_cluster=api.credentials.in_cluster,
        rights=missing.result(),
        namespace_labels=home.result()[0],
        namespace_missing=home.result()[1],
        quotas=_items(quotas.result()),
        ranges=_items(ranges.result()),
        webhooks=hooks.result(),
        nodes=None if seen is None else seen.items,
        kubelets=await _kubelets(api, () if seen is None else seen.items),
        runtime_classes=None if named is None else tuple(one.metadata.name for one in named.items),
        registry=registry.result(),
        tried=tried,
    )


async def look_at_nodes(api: Api) -> tuple[str, tuple[Node, ...] | None]:
    """The server's version and some of its nodes: what choosing a delivery needs, in two requests."""
    version, nodes = await asyncio.gather(
        api.get("/version", _Version), _seen(api, "/api/v1/nodes", Nodes, query={"limit": str(NODES)})
    )
    return version.git_version, None if nodes is None else nodes.items


async def _seen(api: Api, path: str, shape: type[_T], *, query: Query | None = None) -> _T | None:
    """The answer, or None where it may not be asked or there is no such thing in this version."""
    try:
        return await api.get(path, shape, query=query)
    except (ApiDenied, ApiNotFound):
        return None


class _Page(Protocol[_Item_co]):
    """What a listing answers with."""

    @property
    def items(self) -> tuple[_Item_co, ...]: ...


def _items(page: _Page[_Item_co] | None) -> tuple[_Item_co, ...] | None:
    return None if page is None else page.items


async def _missing_rights(api: Api, namespace: str) -> dict[Right, tuple[str, ...]]:
    """For each right the verbs that these credentials lack, by asking for each (SelfSubjectAccessReview)."""

    async def missing(right: Right) -> tuple[str, ...]:
        answers = await asyncio.gather(*(_may(api, namespace, right, verb) for verb in right.verbs))
        return tuple(verb for verb, may in zip(right.verbs, answers, strict=True) if not may)

    ours = [right for right in RIGHTS if right.purpose != "reaper"]
    found = await asyncio.gather(*(missing(right) for right in ours))
    return dict(zip(ours, found, strict=True))


async def _may(api: Api, namespace: str, right: Right, verb: str) -> bool:
    resource, _, subresource = right.resource.partition("/")
    attributes = {"verb": verb, "group": right.group, "resource": resource, "subresource": subresource}
    if right.scope == "namespace" or right.resource == "namespaces":
        attributes["namespace"] = namespace
    if right.resource == "namespaces":
        attributes["name"] = namespace
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {key: value for key, value in attributes.items() if value}},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    return (await api.post(path, msgspec.json.encode(body), _Review)).status.allowed


async def _namespace(api: Api, path: str) -> tuple[dict[str, str] | None, bool]:
    """Its labels as far as they may be seen, and whether it is known not to exist."""
    try:
        return (await api.get(path, Named)).metadata.labels, False
    except ApiNotFound:
        return None, True
    except ApiDenied:
        return None, False


async def _webhooks(api: Api) -> tuple[Webhook, ...] | None:
    both = await asyncio.gather(
        *(_seen(api, f"{_WEBHOOKS}/{kind}webhookconfigurations", _Webhooks) for kind in ("mutating", "validating"))
    )
    if None in both:
        return None
    return tuple(hook for page in both if page is not None for one in page.items for hook in one.webhooks or ())


async def _registry(api: Api) -> str | None:
    try:
        return (await advertised_registry(api)).host
    except ApiNotFound:
        return ""
    except (ApiDenied, BadRequest):
        return None


async def _kubelets(api: Api, nodes: Sequence[Node]) -> dict[str, Kubelet]:
    """Configurations of some nodes that are ready, of each kind by name at least one."""
    ready = [node.metadata.name for node in nodes if node.is_ready]
    kinds = {_GROUP_DIGITS.sub("#", name): name for name in reversed(ready)}
    chosen = list(dict.fromkeys([*kinds.values(), *ready]))[:KUBELETS]
    found = await asyncio.gather(*(_configz(api, name) for name in chosen))
    return {name: one for name, one in zip(chosen, found, strict=True) if one is not None}


async def _configz(api: Api, node: str) -> Kubelet | None:
    """Through the API server; a kubelet that is not there or answers something else is unknown."""
    try:
        return (await api.get(f"/api/v1/nodes/{quote(node)}/proxy/configz", _Configz)).kubeletconfig
    except (ApiError, ProtocolViolation):
        return None
