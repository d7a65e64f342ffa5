"""An observer that is no client: what is in the benchmark's namespace, asked of the API server itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec

from sandlot.bench.kubernetes.access import JSON_BODY

KINDS: Final = {"pods": "/api/v1/namespaces/{}/pods", "leases": "/apis/coordination.k8s.io/v1/namespaces/{}/leases"}


class _Metadata(msgspec.Struct):
    name: str = ""


class _Item(msgspec.Struct):
    metadata: _Metadata


class _Items(msgspec.Struct):
    items: list[_Item]


class Observer:
    """Looks at one namespace and at the metrics of the whole API server."""

    def __init__(self, session: aiohttp.ClientSession, namespace: str) -> None:
        self._session = session
        self.namespace = namespace

    async def metrics(self) -> str:
        """The API server's metrics page."""
        async with self._session.get("/metrics", headers={"Accept": "text/plain"}) as answer:
            return await answer.text()

    async def names(self, kind: str) -> list[str]:
        """Every object of a kind of `KINDS`, as the API server's store has it, not a cache."""
        async with self._session.get(KINDS[kind].format(self.namespace)) as answer:
            return [item.metadata.name for item in msgspec.json.decode(await answer.read(), type=_Items).items]

    async def left(self, seconds: float) -> dict[str, list[str]]:
        """What is left by kind, at most `seconds` after the end; returns as soon as nothing is."""
        deadline = time.monotonic() + seconds
        while True:
            found = {kind: names for kind in KINDS if (names := await self.names(kind))}
            if not found or time.monotonic() >= deadline:
                return found
            await asyncio.sleep(0.1)


@asynccontextmanager
async def namespace(session: aiohttp.ClientSession, name: str) -> AsyncIterator[None]:
    """A namespace of the benchmark's own, ready for pods: what is in it is nobody else's.

    Afterwards it is removed, and waited for: clearing the events of thousands of pods is work of the cluster that whatever
    is measured next must not bear.
    """
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {"sandlot.dev/kind": "bench"}}}
    async with session.post("/api/v1/namespaces", data=msgspec.json.encode(body), headers=JSON_BODY):
        pass
    try:
        # Every pod is admitted with this account, though none of ours gets its token.
        await _until(session, f"/api/v1/namespaces/{name}/serviceaccounts/default", there=True)
        yield
    finally:
        async with session.delete(f"/api/v1/namespaces/{name}"):
            pass
        await _until(session, f"/api/v1/namespaces/{name}", there=False)


async def _until(session: aiohttp.ClientSession, path: str, *, there: bool) -> None:
    """Wait until something exists, or no longer does."""
    while True:
        async with session.get(path, raise_for_status=False) as answer:
            if answer.status != 404:
                answer.raise_for_status()
            if (answer.status != 404) is there:
                return
        await asyncio.sleep(0.1)
