"""The `Backend` of a cluster: pods made, found and removed through the API server, links straight to their daemons."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Final

from sandlot.backends.base import Gone, Grant, Opened, Part, SandboxInfo
from sandlot.backends.kubernetes import naming
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.api_errors import ApiExists
from sandlot.backends.kubernetes.asking import Events
from sandlot.backends.kubernetes.credentials import Load
from sandlot.backends.kubernetes.deleting import delete_all, delete_pod, get_pod, wait_absent
from sandlot.backends.kubernetes.images import Images
from sandlot.backends.kubernetes.leased import LeasedLinks
from sandlot.backends.kubernetes.leases import ClientLease, SandboxLeases, collection, left_s
from sandlot.backends.kubernetes.linking import Links, OpenLinks, drop, open_links
from sandlot.backends.kubernetes.listing import info, list_pods, pods_path
from sandlot.backends.kubernetes.noticing import Notice, log_notice
from sandlot.backends.kubernetes.objects import Lease, LeaseList, Pod
from sandlot.backends.kubernetes.options import ClusterOptions
from sandlot.backends.kubernetes.pods import PodRequest, manifest
from sandlot.backends.kubernetes.posting import POST_S, post_pod
from sandlot.backends.kubernetes.preflight.remembering import Memory
from sandlot.backends.kubernetes.preflight.resolving import resolved
from sandlot.backends.kubernetes.reaper import Reaper
from sandlot.backends.kubernetes.retrying import insist
from sandlot.backends.kubernetes.starting import Start
from sandlot.backends.kubernetes.suspects import Suspects
from sandlot.backends.kubernetes.watching import PodWatch, Roster, Tracked
from sandlot.connection import Connection
from sandlot.errors import CleanupFailed, Closed, Infrastructure, SandboxFileExists, SandboxGone, SandlotError, Unsupported
from sandlot.spec import Spec

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Running:
    """What there is between start and close."""

    api: Api
    namespace: str
    lease: ClientLease
    leases: SandboxLeases
    roster: Roster
    start: Start
    links: Links
    leased: LeasedLinks
    options: ClusterOptions
    suspects: Suspects
    tasks: tuple[asyncio.Task[None], ...]
    pid: int


@dataclass(slots=True)
class _Ending:
    """A close that has begun, and how far it has come."""

    state: _Running
    asked: bool = False
    """Whether the API server has had its chance to delete what there was."""
    failure: CleanupFailed | None = None
    """What came of that."""


class KubernetesBackend:
    """Sandboxes as pods. Made by `sandlot.kubernetes()`; see there for the arguments."""

    kind = "kubernetes"

    def __init__(
        self,
        load: Load,
        images: Images,
        options: ClusterOptions,
        *,
        opens: OpenLinks = open_links,
        memory: Memory | None = None,
        notice: Notice = log_notice,
    ) -> None:
        self.client: Final = secrets.token_hex(4)
        """This client's id: its pods and its Lease bear it."""
        self.options: Final = options
        self._load, self._images, self._opens, self._memory, self._notice = load, images, opens, memory, notice
        self._state: _Running | None = None
        self._ending: _Ending | None = None

    # --- start and end ------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Take a Lease, listen for links, and watch.

        Raises:
            Unsupported, Denied: no credentials, no rights, or no way for links; the hint says what is missing.
            Infrastructure: the API server does not answer.
        """
        if self._state is not None:
            return
        api = await Api.open(self._load)
        try:
            self._state = await self._started(api)
        except BaseException:
            try:
                await self._images.aclose()
            finally:
                await api.aclose()
            raise

    async def _started(self, api: Api) -> _Running:
        namespace = self.options.namespace or api.credentials.namespace
        await api.request("GET", "/version")  # it is there, and tells its time
        await self._images.start(api)
        options = replace(await resolved(api, namespace, self.options, self._memory), namespace=namespace)
        if options.delivery != "hostpath" and options.daemon_image is None:
            options = replace(options, daemon_image=await self._images.daemon())
        links = await self._opens(api, options)
        lease = ClientLease(api, namespace, self.client, lease_s=options.lease_s, renew_s=options.renew_s)
        try:
            await lease.acquire()
        except BaseException:
            await links.aclose()
            raise
        roster = Roster(asyncio.get_running_loop().time)
        watch = PodWatch(api, pods_path(namespace), naming.selector(client=self.client), roster)
        reaper = Reaper(api, namespace, own=lease.name, lease_s=options.lease_s)
        tasks = (
            asyncio.create_task(watch.run(), name="watch the pods"),
            asyncio.create_task(_keep_lease(lease, roster), name="renew the client's lease"),
            asyncio.create_task(reaper.run(), name="look for dead clients"),
        )
        start = Start(api, roster.schedulers, Events(api, namespace), options, links, self._notice)
        leases = SandboxLeases(api, namespace, self.client)
        leased = LeasedLinks(api, namespace)
        return _Running(api, namespace, lease, leases, roster, start, links, leased, options, Suspects(), tasks, os.getpid())

    async def aclose(self) -> None:
        """Delete every attached sandbox of this client, then its Lease; leased sandboxes live on. Idempotent.

        Cancelled, it goes on from there when it is called again.

        Raises:
            CleanupFailed: the API server did not let it; others delete the sandboxes when the Lease has run out.
        """
        if self._state is not None:
            self._ending, self._state = _Ending(self._state), None
        ending = self._ending
        if ending is None or ending.state.pid != os.getpid():
            return
        ending.state.roster.close()
        if not ending.asked:
            ending.failure = await self._delete_own(ending.state)
            ending.asked = True
        await _stop(ending.state)
        await self._images.aclose()
        await ending.state.api.aclose()
        self._ending = None
        if ending.failure is not None:
            raise ending.failure

    async def _delete_own(self, state: _Running) -> CleanupFailed | None:
        """What is attached, and the Lease; why not, otherwise."""
        try:
            await delete_all(state.api, state.namespace, client=self.client)
            await state.lease.release()
        except SandlotError as error:
            message = f"the API server did not let this client delete what it had: {error}"
            hint = (
                f"others delete it when its lease has run out ({self.options.lease_s:g} s), and `sandlot gc --kubernetes` does"
            )
            failure = CleanupFailed(message, left=[f"pods labelled {naming.CLIENT}={self.client}"], hint=hint)
            failure.__cause__ = error
            return failure
        return None

    # --- sandboxes ----------------------------------------------------------------------------------------------------
    async def create(self, name: str, spec: Spec, grant: Grant) -> Opened:
        """See `Backend.create`. An image of this machine is published first.

        Raises:
            ImageNotFound, ImageInvalid, BadRequest, LimitUnenforceable, Unsupported, Denied: not retriable.
            SandboxFileExists: the name is taken.
            Capacity, Throttled, NotReady, SandboxGone, DaemonFault, TransportLost: retriable.
        """
        state, clock = self._running(), asyncio.get_running_loop().time
        image = await self._images.reference(spec)
        asked_s = clock()
        tracked = self._expect(state, name, grant)
        try:
            environment = dict(state.links.register(name))
        except ValueError as error:
            raise SandboxFileExists(f"this client has a sandbox named {name!r}") from error
        try:
            request = await self._request(state, name, spec, grant, image, environment)
            await post_pod(state.api, state.namespace, request, manifest(request, state.options))
        except (ApiExists, SandboxFileExists) as error:
            self._forget(state, name)
            raise SandboxFileExists(f"there is a pod named {name!r} already") from error
        accepted_s = clock()
        connection = await _linked(state, tracked)
        if tracked.leased:
            _keep(state, name, connection)
        tracked.usable = True
        connection.reopen_within_s = state.options.link_grace_s
        spans = _spans(tracked, asked_s, accepted_s, clock())
        try:
            pulls_s = await state.start.pulls_s(tracked, spans["start"])
        except asyncio.CancelledError:
            connection.fail(Closed("nobody waits for this sandbox any more"))
            raise
        if pulls_s is not None:
            spans |= {"pull": pulls_s, "start": spans["start"] - pulls_s}
        return Opened(connection, spans)

    def _expect(self, state: _Running, name: str, grant: Grant) -> Tracked:
        tracked = state.roster.expect(name)
        tracked.leased = grant.owner == "leased"
        return tracked

    async def _request(
        self, state: _Running, name: str, spec: Spec, grant: Grant, image: str, environment: dict[str, str]
    ) -> PodRequest:
        if grant.lease_s is not None:
            lease = await state.leases.grant(name, grant.lease_s)
        else:
            lease = await state.lease.living_owner()
            environment["SANDLOT_GRACE_MS"] = str(round(self.options.link_grace_s * 1000))
        return PodRequest(
            name=name,
            spec=spec,
            grant=grant,
            image=image,
            client=self.client,
            lease=lease,
            mark=secrets.token_hex(8),
            avoid=state.suspects.names(asyncio.get_running_loop().time()),
            environment=environment,
        )

    async def reopen(self, name: str) -> Connection:
        """See `Backend.reopen`."""
        state = self._running()
        tracked = state.roster.get(name)
        if tracked is None:
            return await self._reopen_foreign(state, name)
        ended = asyncio.ensure_future(tracked.wait(lambda one: one.ending is not None))
        linking = asyncio.create_task(state.links.reconnect(tracked))
        try:
            await asyncio.wait([linking, ended], return_when=asyncio.FIRST_COMPLETED)
            if tracked.ending is not None:
                raise SandboxGone(f"{name} ended: {tracked.ending.why} ({tracked.ending.detail})", why=tracked.ending.why)
            return linking.result()
        except BaseException:
            drop(linking)
            raise
        finally:
            ended.cancel()

    async def _reopen_foreign(self, state: _Running, name: str) -> Connection:
        pod = await get_pod(state.api, state.namespace, name)
        if pod is None or pod.metadata.labels.get(naming.KIND) != "sandbox":
            raise SandboxGone(f"there is no sandbox named {name!r} in namespace {state.namespace}")
        if pod.metadata.labels.get(naming.OWNER) != "leased":
            raise Unsupported(f"{name} was made by another client, which alone has the secret of its link")
        return await state.leased.reopen(pod)

    async def delete(self, name: str, *, grace_s: float = 0.0) -> bool:
        """See `Backend.delete`. One write; that it is gone is seen by the watch, or by asking.

        Raises:
            ApiError: the deletion was not accepted.
        """
        state = self._running()
        tracked = state.roster.get(name)
        if tracked is None:
            return await self._delete_foreign(state, name, grace_s)
        tracked.deleting = True
        state.links.forget(name)
        known = tracked.pod is not None
        pod = await delete_pod(state.api, state.namespace, name, grace_s=grace_s) if not tracked.absent else None
        if pod is not None:
            await _wait_absent(state, tracked, pod)
        if tracked.leased:
            state.leased.remove(name)
            await state.leases.revoke(name)
        self._forget(state, name)
        return known or pod is not None

    async def _delete_foreign(self, state: _Running, name: str, grace_s: float) -> bool:
        """Of another client, or of nobody any more. What is no sandbox is left alone."""
        pod = await get_pod(state.api, state.namespace, name)
        if pod is None or pod.metadata.labels.get(naming.KIND) != "sandbox":
            return False
        await delete_pod(state.api, state.namespace, name, grace_s=grace_s)
        await wait_absent(state.api, state.namespace, name, pod.metadata.uid)
        if pod.metadata.labels.get(naming.OWNER) == "leased":
            state.leased.remove(name)
            await state.leases.revoke(name)
        return True

    async def clear(self) -> None:
        """See `Backend.clear`. A handful of requests, whatever their number."""
        state = self._running()
        state.roster.doom_attached()
        await delete_all(state.api, state.namespace, client=self.client)

    async def list(self) -> list[SandboxInfo]:
        """See `Backend.list`. Those of all clients in the namespace."""
        state = self._running()
        pods = await insist(lambda: list_pods(state.api, state.namespace, naming.selector(kind="sandbox")), within_s=POST_S)
        leases: dict[str, Lease] = {}
        if any(pod.metadata.labels.get(naming.OWNER) == "leased" for pod in pods):
            query = {"labelSelector": naming.selector(kind="sandbox-lease")}
            found = await insist(lambda: state.api.get(collection(state.namespace), LeaseList, query=query), within_s=POST_S)
            leases = {one.metadata.name: one for one in found.items}
        now = state.api.clock.now()
        return [info(pod, _lease_left_s(pod, leases, now)) for pod in pods]

    async def renew(self, name: str, lease_s: float) -> None:
        """See `Backend.renew`."""
        await self._running().leases.renew(name, lease_s)

    async def watch(self) -> AsyncIterator[Gone]:
        """See `Backend.watch`."""
        async for gone in self._running().roster.departures():
            yield gone

    # --- inside -------------------------------------------------------------------------------------------------------
    def _running(self) -> _Running:
        if self._state is None:
            raise Closed(
                "the backend is not started or was closed", hint="use it as: async with sandlot.kubernetes() as provider"
            )
        if self._state.pid != os.getpid():
            raise Closed("this provider belongs to the process that forked this one", hint="open one here")
        return self._state

    def _forget(self, state: _Running, name: str) -> None:
        state.links.forget(name)
        state.roster.forget(name)


def _keep(state: _Running, name: str, connection: Connection) -> None:
    """A leased sandbox that only this process could link to would be of little use."""
    try:
        state.leased.keep(state.links.secrets_of(name))
    except SandlotError as error:
        connection.fail(error)
        raise


async def _linked(state: _Running, tracked: Tracked) -> Connection:
    """Its first link; which node was to blame when there is none is remembered."""
    try:
        connection = await state.start.first_link(tracked)
    except Infrastructure:
        if tracked.node:
            state.suspects.failed(tracked.node, asyncio.get_running_loop().time())
        raise
    if tracked.node:
        state.suspects.started(tracked.node)
    return connection


async def _wait_absent(state: _Running, tracked: Tracked, pod: Pod) -> None:
    """The watch tells it, as a rule at once; whoever has no watch just now asks."""
    try:
        async with asyncio.timeout(1.0):
            await tracked.wait(lambda one: one.absent)
    except TimeoutError:
        await wait_absent(state.api, state.namespace, tracked.name, pod.metadata.uid)


async def _stop(state: _Running) -> None:
    """What runs for this client, and its links. May be done again."""
    for task in state.tasks:
        task.cancel()
    await asyncio.wait(state.tasks)
    state.start.told.close()
    state.leased.close()
    await state.links.aclose()


async def _keep_lease(lease: ClientLease, roster: Roster) -> None:
    """Renew for ever; taken for dead, begin anew: what there was is lost, what comes is not."""
    while True:
        await lease.keep()
        _log.error("this client did not renew its lease in time: its sandboxes were deleted by others")
        roster.fence()
        while True:
            try:
                await lease.acquire()
                break
            except SandlotError as error:
                _log.warning("taking a new lease failed and is tried again: %s", error)


def _spans(tracked: Tracked, asked_s: float, accepted_s: float, linked_s: float) -> dict[Part, float]:
    """What is known of where the time went. A link may well be there before the watch tells of the place that was found."""
    scheduled_s = tracked.times_s.get("scheduled")
    spans: dict[Part, float] = {"request": accepted_s - asked_s}
    if scheduled_s is not None and scheduled_s <= linked_s:
        spans["schedule"] = max(0.0, scheduled_s - accepted_s)
    spans["start"] = linked_s - max(accepted_s, scheduled_s or 0.0)
    return spans


def _lease_left_s(pod: Pod, leases: dict[str, Lease], now: float) -> float | None:
    lease = leases.get(naming.sandbox_lease(pod.metadata.name))
    return left_s(lease, now) if lease is not None else None
