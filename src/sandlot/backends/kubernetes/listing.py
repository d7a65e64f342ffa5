"""Everything of a collection, page by page."""

from __future__ import annotations

from typing import Final

from sandlot.backends.base import SandboxInfo
from sandlot.backends.kubernetes import naming
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.objects import Metadata, NamedList, Pod, PodList
from sandlot.backends.kubernetes.server_time import unix_time
from sandlot.backends.kubernetes.status import ended
from sandlot.spec import Owner

PAGE: Final = "500"


def pods_path(namespace: str) -> str:
    """The path of a namespace's pods."""
    return f"/api/v1/namespaces/{namespace}/pods"


async def list_pods(api: Api, namespace: str, selector: str) -> list[Pod]:
    """All pods that the selector finds."""
    found: list[Pod] = []
    query = {"labelSelector": selector, "limit": PAGE}
    while True:
        page = await api.get(pods_path(namespace), PodList, query=query)
        found += page.items
        if not page.metadata.continue_:
            return found
        query["continue"] = page.metadata.continue_


async def any_pod(api: Api, namespace: str, selector: str) -> str | None:
    """The name of one that the selector finds; None: there is none."""
    page = await api.get(pods_path(namespace), NamedList, query={"labelSelector": selector, "limit": "1"})
    return page.items[0].metadata.name if page.items else None


def info(pod: Pod, lease_left_s: float | None) -> SandboxInfo:
    """One line of a listing."""
    meta = pod.metadata
    owner: Owner = "leased" if meta.labels.get(naming.OWNER) == "leased" else "attached"
    return SandboxInfo(
        name=meta.name,
        owner=owner,
        state="ended" if ended(pod) is not None else (pod.status.phase or "unknown").lower(),
        created_s=_created_s(meta),
        image=meta.annotations.get(naming.IMAGE_NOTE, ""),
        lease_left_s=lease_left_s,
        labels=naming.exact_labels(meta.labels, meta.annotations),
    )


def _created_s(meta: Metadata) -> float:
    return unix_time(meta.creation_timestamp) if meta.creation_timestamp else 0.0
