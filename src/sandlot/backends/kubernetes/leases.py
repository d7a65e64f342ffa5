"""Leases: a client says with one that it lives, and a leased sandbox lives as long as its own.

Times in them are the API server's, as `ServerClock` tells them, so that no two machines' clocks need to agree.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import random
import socket
from typing import Final

import msgspec

from sandlot.backends.kubernetes import naming
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.api_errors import ApiExists, ApiNotFound
from sandlot.backends.kubernetes.objects import Lease, Named, OwnerReference
from sandlot.backends.kubernetes.retrying import insist
from sandlot.backends.kubernetes.server_time import micro_time, unix_time
from sandlot.errors import SandboxGone, SandlotError

_log = logging.getLogger(__name__)

RETRY_S: Final = 1.0  # after a renewal that failed: often enough to be among the first when an API server comes back


def collection(namespace: str) -> str:
    """The path of a namespace's Leases."""
    return f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"


class ClientLease:
    """The Lease of this client. `acquire` first; `keep` renews it until it is lost; `release` deletes it."""

    def __init__(self, api: Api, namespace: str, client: str, *, lease_s: float, renew_s: float) -> None:
        self.name: Final = naming.client_lease(client)
        self._api, self._path, self._client = api, collection(namespace), client
        self._lease_s, self._renew_s = lease_s, renew_s
        self._owner: OwnerReference | None = None
        self._clock = asyncio.get_running_loop().time
        self._renewed_s = 0.0
        self._renewal = asyncio.Event()

    @property
    def owner(self) -> OwnerReference:
        """What pods name as their owner."""
        assert self._owner is not None, "acquire comes first"
        return self._owner

    async def living_owner(self) -> OwnerReference:
        """The owner of a pod that is about to be made, at once as a rule.

        A process that was stopped for longer than its lease does not know whether it was taken for dead: then this waits
        until it does, since the cluster deletes at once what is made for a Lease that is gone.
        """
        while self._clock() - self._renewed_s > self._lease_s:
            self._renewal.clear()
            await self._renewal.wait()
        return self.owner

    async def acquire(self) -> None:
        """Make it. One of the same name can only be an earlier try's whose answer was lost: it is taken over.

        Raises:
            ApiDenied: these credentials may not, or ApiNotFound: there is no such namespace.
        """
        now, asked_s = self._api.clock.now(), self._clock()
        body = _lease(self.name, {naming.KIND: "client", naming.CLIENT: self._client}, now, self._lease_s, _holder())

        async def post() -> OwnerReference:
            try:
                made = await self._api.post(self._path, body, Named)
            except ApiExists:
                made = await self._api.get(f"{self._path}/{self.name}", Named)
            return OwnerReference(kind="Lease", name=self.name, uid=made.metadata.uid)

        self._owner = await insist(post, within_s=self._lease_s)
        self._renewed(asked_s)

    async def keep(self) -> None:
        """Renew it again and again. Returns when it is found gone: this client has been taken for dead."""
        while True:
            await asyncio.sleep(self._renew_s * random.uniform(0.8, 1.0))
            while True:
                asked_s = self._clock()
                try:
                    async with asyncio.timeout(self._renew_s):  # an answer that hangs must not cost the lease
                        await _renew(self._api, f"{self._path}/{self.name}", self._lease_s)
                    self._renewed(asked_s)
                    break
                except ApiNotFound:
                    return
                except (SandlotError, TimeoutError) as error:
                    _log.warning("renewing this client's lease failed and is tried again: %s", error)
                    await asyncio.sleep(RETRY_S)

    async def release(self) -> None:
        """Delete it, when nothing is left that belongs to it. Idempotent."""
        await _delete(self._api, f"{self._path}/{self.name}")

    def _renewed(self, asked_s: float) -> None:
        self._renewed_s = asked_s
        self._renewal.set()


class SandboxLeases:
    """The Leases of leased sandboxes, whoever made them."""

    def __init__(self, api: Api, namespace: str, client: str) -> None:
        self._api, self._path, self._client = api, collection(namespace), client

    async def grant(self, name: str, lease_s: float) -> OwnerReference:
        """Make the Lease of a sandbox that is about to be made.

        Raises:
            ApiExists: there is a leased sandbox of that name.
        """
        labels = {naming.KIND: "sandbox-lease", naming.CLIENT: self._client}
        body = _lease(naming.sandbox_lease(name), labels, self._api.clock.now(), lease_s, _holder())
        made = await self._api.post(self._path, body, Named)
        return OwnerReference(kind="Lease", name=naming.sandbox_lease(name), uid=made.metadata.uid)

    async def renew(self, name: str, lease_s: float) -> None:
        """Let it live `lease_s` seconds from now.

        Raises:
            SandboxGone: its lease had run out.
        """
        path = f"{self._path}/{naming.sandbox_lease(name)}"
        try:
            await insist(lambda: _renew(self._api, path, lease_s), within_s=lease_s)
        except ApiNotFound as error:
            raise SandboxGone(f"the lease of {name} has run out, or there never was one", why="lease_expired") from error

    async def revoke(self, name: str) -> None:
        """Delete it with its sandbox. Idempotent."""
        await _delete(self._api, f"{self._path}/{naming.sandbox_lease(name)}")


def left_s(lease: Lease, now: float) -> float | None:
    """Seconds until it runs out, negative when it has; None for a Lease without times, which is none of ours."""
    spec = lease.spec
    if spec.renew_time is None or spec.lease_duration_seconds is None:
        return None
    try:
        return unix_time(spec.renew_time) + spec.lease_duration_seconds - now
    except ValueError:
        return None


async def _renew(api: Api, path: str, lease_s: float) -> None:
    spec = {"renewTime": micro_time(api.clock.now()), "leaseDurationSeconds": math.ceil(lease_s)}
    await api.patch(path, msgspec.json.encode({"spec": spec}), Named)


async def _delete(api: Api, path: str) -> None:
    async def delete() -> None:
        try:
            await api.delete(path, Named)
        except ApiNotFound:
            return

    await insist(delete, within_s=DELETE_S)


DELETE_S: Final = 30.0


def _lease(name: str, labels: dict[str, str], now: float, lease_s: float, holder: str) -> bytes:
    times = {"acquireTime": micro_time(now), "renewTime": micro_time(now), "leaseDurationSeconds": math.ceil(lease_s)}
    body = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "labels": labels},
        "spec": {"holderIdentity": holder, **times},
    }
    return msgspec.json.encode(body)


def _holder() -> str:
    """For people who look at the Lease: which process of which machine."""
    return f"{socket.gethostname()}/{os.getpid()}"[:128]
