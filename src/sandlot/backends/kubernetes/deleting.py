"""Deleting pods until they are gone: one write each, tried again through whatever the API server answers.

With a grace of 0 the object goes at once and its name is free; the node ends the processes within its own least time.
"""

from __future__ import annotations

import asyncio
import math
from typing import Final

from sandlot.backends.kubernetes import naming
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.api_errors import ApiNotFound
from sandlot.backends.kubernetes.listing import any_pod, pods_path
from sandlot.backends.kubernetes.objects import Pod
from sandlot.backends.kubernetes.retrying import insist

INSIST_S: Final = 60.0
LOOK_S: Final = 0.2
LONGEST_LOOK_S: Final = 2.0


async def delete_pod(api: Api, namespace: str, name: str, *, grace_s: float = 0.0) -> Pod | None:
    """Ask for its deletion. The pod as it was; None: there is none. It may still be ending.

    Raises:
        ApiError: it was not accepted for `INSIST_S` seconds, or these credentials may not.
    """
    query = {"gracePeriodSeconds": str(math.ceil(grace_s)), "propagationPolicy": "Background"}

    async def ask() -> Pod | None:
        try:
            return await api.delete(f"{pods_path(namespace)}/{name}", Pod, query=query)
        except ApiNotFound:
            return None

    return await insist(ask, within_s=INSIST_S)


async def get_pod(api: Api, namespace: str, name: str) -> Pod | None:
    """The pod of that name; None: there is none."""

    async def ask() -> Pod | None:
        try:
            return await api.get(f"{pods_path(namespace)}/{name}", Pod)
        except ApiNotFound:
            return None

    return await insist(ask, within_s=INSIST_S)


async def wait_absent(api: Api, namespace: str, name: str, uid: str) -> None:
    """Until the API server has this pod no more. Cancel it to give up."""
    pause_s = LOOK_S
    while True:
        pod = await get_pod(api, namespace, name)
        if pod is None or pod.metadata.uid != uid:
            return
        await asyncio.sleep(pause_s)
        pause_s = min(LONGEST_LOOK_S, pause_s * 1.5)


async def delete_all(api: Api, namespace: str, *, client: str) -> None:
    """Delete every attached pod of a client, several collections at once, until none is left."""
    whole = naming.selector(client=client, owner="attached")
    pause_s = LOOK_S
    while await insist(lambda: any_pod(api, namespace, whole), within_s=INSIST_S) is not None:
        shards = (naming.selector(client=client, owner="attached", shard=str(one)) for one in range(naming.SHARDS))
        await asyncio.gather(*(_delete_collection(api, namespace, one) for one in shards))
        await asyncio.sleep(pause_s)
        pause_s = min(LONGEST_LOOK_S, pause_s * 1.5)


async def _delete_collection(api: Api, namespace: str, selector: str) -> None:
    query = {"labelSelector": selector, "gracePeriodSeconds": "0", "propagationPolicy": "Background"}

    async def ask() -> None:
        await api.request("DELETE", pods_path(namespace), query=query)

    await insist(ask, within_s=INSIST_S)
