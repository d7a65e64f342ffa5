"""Deletes what dead clients left behind. Every client does it for all others in its namespace, and `sandlot gc` once.

A client is dead when its Lease has run out by the API server's own time, and has then stayed unrenewed for `SETTLE_S`
under the eyes of this reaper: after an outage of the API server all Leases look dead, until their owners, who try every
second, have renewed them. The Lease is deleted first, under the condition that nobody has touched it: that is the moment
at which the client is declared dead, so it cannot be half dead; and should this reaper end right then, the cluster deletes
what belonged to the Lease by itself, if slowly. A client that finds its Lease gone knows that its sandboxes are gone too.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from sandlot.backends.kubernetes import naming
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.api_errors import ApiConflict, ApiExpired, ApiNotFound
from sandlot.backends.kubernetes.deleting import delete_all, delete_pod
from sandlot.backends.kubernetes.leases import collection, left_s
from sandlot.backends.kubernetes.listing import list_pods
from sandlot.backends.kubernetes.objects import Lease, LeaseList, Named, Pod
from sandlot.errors import SandlotError

_log = logging.getLogger(__name__)

SETTLE_S: Final = 15.0  # one and a half renewals of the default pace, fifteen tries of a client that was kept from it
SLACK_S: Final = 2.0  # what the server's time is known to: whole seconds, and an answer's way
SOONEST_S: Final = 5.0
LATEST_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Reaped:
    """What one look removed, by the names of the clients and of the leased sandboxes."""

    clients: tuple[str, ...] = ()
    sandboxes: tuple[str, ...] = ()


class Overdue:
    """Which Leases have run out, and since when that is known. Pure."""

    def __init__(self, latest_s: float = LATEST_S) -> None:
        self._latest_s = latest_s
        self._since: dict[tuple[str, str | None], float] = {}

    def look(self, leases: Iterable[Lease], now: float) -> tuple[list[Lease], float]:
        """The Leases whose owners are dead, and in how many seconds to look again. `now`: the server's time."""
        dead: list[Lease] = []
        again_s = self._latest_s
        since: dict[tuple[str, str | None], float] = {}
        for lease in leases:
            left = left_s(lease, now)
            if left is None:
                continue
            if left + SLACK_S > 0:
                again_s = min(again_s, left + SLACK_S)
                continue
            key = (lease.metadata.uid, lease.spec.renew_time)
            since[key] = self._since.get(key, now)
            waits_s = since[key] + SETTLE_S - now
            if waits_s <= 0:
                dead.append(lease)
            else:
                again_s = min(again_s, waits_s, SOONEST_S)  # and see in between that the API server still answers
        self._since = since
        return dead, max(again_s, 0.5)

    def forget(self) -> None:
        """A look failed: nobody could renew either, perhaps. Everyone gets the whole time again."""
        self._since.clear()

    def __len__(self) -> int:
        return len(self._since)


class Reaper:
    """Looks after the Leases of one namespace; `own` is never reaped.

    `lease_s`: how long the Leases there last, as a rule. Each is then seen before it can run out, so that its end is known
    in time: a client may have come and died between two looks.
    """

    def __init__(self, api: Api, namespace: str, *, own: str | None = None, lease_s: float = 2 * LATEST_S) -> None:
        self._api, self._namespace, self._own = api, namespace, own
        self._overdue = Overdue(min(LATEST_S, lease_s / 2))

    async def run(self) -> None:
        """Look again and again. Never returns; cancel it."""
        while True:
            pause_s = SOONEST_S
            try:
                reaped, pause_s = await self.look()
                if reaped != Reaped():
                    _log.info("deleted what dead clients had left: %s", reaped)
            except SandlotError as error:
                self._overdue.forget()
                _log.warning("looking for dead clients failed and is tried again: %s", error)
            await asyncio.sleep(pause_s * random.uniform(1.0, 1.2))

    async def sweep(self) -> Reaped:
        """Look until nobody is suspected any more (20 s where somebody is), then for pods without a Lease.

        Raises:
            ApiDenied: these credentials may not. Infrastructure: the API server failed meanwhile.
        """
        clients: list[str] = []
        sandboxes: list[str] = []
        while True:
            reaped, pause_s = await self.look()
            clients += reaped.clients
            sandboxes += reaped.sandboxes
            if not self._overdue:
                break
            await asyncio.sleep(pause_s)
        orphans = await self._orphans()
        for pod in orphans:
            await delete_pod(self._api, self._namespace, pod.metadata.name)
        return Reaped(tuple(clients), (*sandboxes, *(pod.metadata.name for pod in orphans)))

    async def look(self) -> tuple[Reaped, float]:
        """Delete what is known to be dead now; and in how many seconds to look again."""
        dead, pause_s = self._overdue.look(await self._leases(), self._api.clock.now())
        clients: list[str] = []
        sandboxes: list[str] = []
        for lease in dead:
            if not await self._declare_dead(lease):
                continue
            if lease.metadata.labels.get(naming.KIND) == "client":
                client = lease.metadata.labels.get(naming.CLIENT, "")
                await delete_all(self._api, self._namespace, client=client)
                clients.append(client)
            else:
                name = lease.metadata.name.removeprefix(naming.sandbox_lease(""))
                await delete_pod(self._api, self._namespace, name)
                sandboxes.append(name)
        return Reaped(tuple(clients), tuple(sandboxes)), pause_s

    async def _leases(self) -> list[Lease]:
        found: list[Lease] = []
        query = {"labelSelector": f"{naming.KIND} in (client,sandbox-lease)", "limit": "500"}
        while True:
            page = await self._api.get(collection(self._namespace), LeaseList, query=query)
            found += [one for one in page.items if one.metadata.name != self._own]
            if not page.metadata.continue_:
                return found
            query["continue"] = page.metadata.continue_

    async def _declare_dead(self, lease: Lease) -> bool:
        """Delete its Lease as it was seen. False: it was renewed just now, or another reaper was first."""
        meta = lease.metadata
        body = msgspec.json.encode({"preconditions": {"uid": meta.uid, "resourceVersion": meta.resource_version}})
        try:
            await self._api.delete(f"{collection(self._namespace)}/{meta.name}", Named, body=body)
        except (ApiConflict, ApiNotFound, ApiExpired):
            return False
        return True

    async def _orphans(self) -> list[Pod]:
        """Pods whose Lease is gone. The pods are listed first: a Lease is older than whatever belongs to it."""
        pods = await list_pods(self._api, self._namespace, naming.selector(kind="sandbox"))
        return orphans(pods, {one.metadata.name for one in await self._leases()} | ({self._own} if self._own else set()))


def orphans(pods: Sequence[Pod], leases: set[str]) -> list[Pod]:
    """Those whose Lease is not among these. Pure."""
    return [pod for pod in pods if _lease_of(pod) not in leases]


def _lease_of(pod: Pod) -> str:
    labels = pod.metadata.labels
    if labels.get(naming.OWNER) == "leased":
        return naming.sandbox_lease(pod.metadata.name)
    return naming.client_lease(labels.get(naming.CLIENT, ""))
