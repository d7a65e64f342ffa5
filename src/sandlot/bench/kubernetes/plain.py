"""The floor of a burst: pods and nothing else, POSTed 64 at a time and seen Ready on one watch.

The pods are the backend's own, byte for byte, except that their command is a pause and nobody ever speaks to them. What
is done here is the least that anybody must do to have pods: one POST and one DELETE each, and of the watch only the
fields that say Ready are decoded.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Final

import aiohttp
import msgspec

from sandlot.backends.kubernetes.naming import CLIENT
from sandlot.backends.kubernetes.objects import Lease, OwnerReference
from sandlot.bench.kubernetes.access import JSON_BODY, session
from sandlot.bench.kubernetes.plans import Harvest, Make, Plan
from sandlot.bench.kubernetes.pods import NAME, plain_manifest
from sandlot.bench.kubernetes.watching import batches, version

IN_FLIGHT: Final = 64


class _Condition(msgspec.Struct):
    type: str
    status: str


class _Status(msgspec.Struct):
    conditions: list[_Condition] = []


class _Metadata(msgspec.Struct):
    name: str


class _Pod(msgspec.Struct):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    object: _Pod


@asynccontextmanager
async def plain_pods(plan: Plan) -> AsyncIterator[Make]:
    """See `plans.Work`."""
    async with session(IN_FLIGHT + 1, plan.kubeconfig) as opened, _lease(opened, plan) as lease:
        pods = _Pods(plan, opened, plain_manifest(plan, lease))
        watching = asyncio.create_task(pods.watch(await version(opened, pods.path)))
        try:
            yield lambda: pods.make(watching)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await pods.delete()


@asynccontextmanager
async def _lease(session: aiohttp.ClientSession, plan: Plan) -> AsyncIterator[OwnerReference]:
    """What the pods belong to, as those of a client do."""
    path = f"/apis/coordination.k8s.io/v1/namespaces/{plan.namespace}/leases"
    name = f"plain-{plan.mark}"
    body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}, "spec": {}}
    async with session.post(path, data=msgspec.json.encode(body), headers=JSON_BODY) as answer:
        made = msgspec.json.decode(await answer.read(), type=Lease)
    try:
        yield OwnerReference(kind="Lease", name=name, uid=made.metadata.uid)
    finally:
        async with session.delete(f"{path}/{name}"):
            pass


class _Pods:
    def __init__(self, plan: Plan, opened: aiohttp.ClientSession, manifest: bytes) -> None:
        self._plan = plan
        self._session = opened
        self._manifest = manifest
        self.path = f"/api/v1/namespaces/{plan.namespace}/pods"
        self._posted: list[str] = []
        self._ready: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        self._awaited: int | None = None
        self._complete = asyncio.Event()

    async def make(self, watching: asyncio.Task[None]) -> Harvest:
        names = iter([f"{self._plan.mark}-{number}" for number in range(self._plan.count)])
        await asyncio.gather(*(self._post(names) for _ in range(IN_FLIGHT)))
        self._awaited = len(self._posted)
        self._look()
        complete = asyncio.create_task(self._complete.wait())
        await asyncio.wait({complete, watching}, return_when=asyncio.FIRST_COMPLETED)
        complete.cancel()
        if watching.done():
            await watching
        return Harvest(moments_s=sorted(self._ready.values()), failures=dict(self._failures))

    async def _post(self, names: Iterator[str]) -> None:
        for name in names:
            body = self._manifest.replace(NAME.encode(), name.encode())
            try:
                async with self._session.post(self.path, data=body, headers=JSON_BODY) as answer:
                    await answer.read()
            except aiohttp.ClientResponseError as error:
                self._failures[f"HTTP {error.status}"] += 1
            else:
                self._posted.append(name)

    async def watch(self, start: str) -> None:
        decoder = msgspec.json.Decoder(_Event)
        async for lines in batches(self._session, self.path, start, {"labelSelector": f"{CLIENT}={self._plan.mark}"}):
            for line in lines:
                self._note(decoder.decode(line).object)
            self._look()

    def _note(self, pod: _Pod) -> None:
        if pod.metadata.name not in self._ready and any(
            one.type == "Ready" and one.status == "True" for one in pod.status.conditions
        ):
            self._ready[pod.metadata.name] = time.monotonic()

    def _look(self) -> None:
        if self._awaited is not None and len(self._ready) >= self._awaited:
            self._complete.set()

    async def delete(self) -> None:
        names = iter(self._posted)
        await asyncio.gather(*(self._delete(names) for _ in range(IN_FLIGHT)))

    async def _delete(self, names: Iterator[str]) -> None:
        for name in names:
            async with self._session.delete(f"{self.path}/{name}", params={"gracePeriodSeconds": "0"}) as answer:
                await answer.read()
