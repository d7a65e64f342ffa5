"""The `Backend` of this machine: one host, one connection to it for questions, and one for each sandbox."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandlot.backends.base import Gone, Grant, Opened, SandboxInfo
from sandlot.backends.local import machine, messages
from sandlot.backends.local.hostlink import HostCommand, HostLink
from sandlot.backends.local.images.store import ImageStore, Progress
from sandlot.backends.local.runtime import cache_dir, prepare_disk, runtime_dir
from sandlot.backends.local.unpacking import bare_sandboxes
from sandlot.connection import Connection
from sandlot.daemon_binary import check_daemon, find_daemon
from sandlot.errors import CleanupFailed, Closed, SandboxGone, TransportLost
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.spec import Spec

_log = logging.getLogger(__name__)

CLOSE_TIMEOUT_S: Final = 30.0  # for a host to remove what is left when it is told to end
DEATH_NEWS_S: Final = 5.0  # a dying process closes its sockets first; that it is dead is known a little later
_DESTROYED_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class _Running:
    """What there is between start and close."""

    link: HostLink
    control: Connection
    images: ImageStore
    directory: Path


@dataclass(slots=True)
class _Ending:
    """A close that has begun, and how far it has come."""

    state: _Running
    leased: bool | None = None
    """Whether leased sandboxes, and the host with them, outlive it; None: not known yet."""


class LocalBackend:
    """Sandboxes on this machine. Made by `sandlot.local()`; see there for the arguments."""

    kind = "local"

    def __init__(
        self,
        *,
        daemon: Path | None = None,
        runtime: Path | None = None,
        cache: Path | None = None,
        mode: str | None = None,
        launcher: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> None:
        self._daemon, self._runtime, self._cache = daemon, runtime, cache
        self._mode, self._progress, self._launcher = mode, progress, tuple(launcher)
        self._state: _Running | None = None
        self._ending: _Ending | None = None
        self._names: set[str] = set()
        self._elsewhere: dict[str, bytes] = {}
        self._watchers: set[asyncio.Queue[Gone | None]] = set()

    # --- start and end ------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Start the host. Raises `Unsupported` with a remedy where this machine or user cannot have one."""
        if self._state is not None:
            return
        daemon = check_daemon(self._daemon) if self._daemon else find_daemon()
        directory, cache = self._runtime or runtime_dir(), self._cache or cache_dir()
        command = HostCommand(daemon, directory, prepare_disk(cache), self._mode, self._launcher)
        link = await HostLink.start(command, self._host_died)
        try:
            control = await link.dial()
        except BaseException:
            link.hang_up()
            await self._wait_for_end(link)
            raise
        control.keep_open(link.dial)
        images = ImageStore(cache / link.ready.mode, bare_sandboxes(link), self._progress)
        self._state = _Running(link, control, images, directory)
        if link.ready.swept:
            _log.info("removed what dead hosts had left: %s", ", ".join(link.ready.swept))

    async def aclose(self) -> None:
        """Delete every attached sandbox and end the host; leased sandboxes keep theirs until their leases end. Idempotent.

        Cancelled, it goes on from there when it is called again.

        Raises:
            CleanupFailed: the host did not end within `CLOSE_TIMEOUT_S` seconds.
        """
        if self._state is not None:
            self._ending, self._state = _Ending(self._state), None
        for queue in self._watchers:
            queue.put_nowait(None)
        ending = self._ending
        if ending is None:
            return
        link, control = ending.state.link, ending.state.control
        try:
            if ending.leased is None:
                ending.leased = link.death is None and await _destroy_attached(control)
            await control.aclose()
        finally:
            link.hang_up()
        if ending.leased:
            link.disown()
        else:
            await self._wait_for_end(link)
        self._ending = None

    async def _wait_for_end(self, link: HostLink) -> None:
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await link.ended.wait()
                await link.wait_removed()
        except (TimeoutError, TransportLost):
            message = f"the host (process {link.ready.pid}) did not end and remove all within {CLOSE_TIMEOUT_S:g} s"
            raise CleanupFailed(message, left=sorted(self._names), hint="run `sandlot gc`") from None

    # --- sandboxes ----------------------------------------------------------------------------------------------------
    async def create(self, name: str, spec: Spec, grant: Grant) -> Opened:
        """See `Backend.create`. The image is unpacked first where it has to be.

        Raises:
            ImageNotFound, ImageInvalid: by the caller's doing.
            LimitUnenforceable, UserUnsupported, Unsupported: this machine or id mode cannot.
            SandboxFileExists: the name is taken.
            Capacity, TransportLost, SandboxGone: retriable.
        """
        state, clock = self._running(), asyncio.get_running_loop().time
        asked_s = clock()
        image = await state.images.resolve(spec.image)
        unpacked_s = clock()
        connection = await state.link.dial()
        try:
            request = messages.create(connection.next_id(), name, spec, grant, image)
            self._names.add(name)
            await connection.become_sandbox(request, a.CreateOk)
        except BaseException as error:
            await connection.aclose()
            if isinstance(error, TransportLost):
                state.link.check_alive(f"sandbox {name!r} was not made")
            raise
        return Opened(connection, {"pull": unpacked_s - asked_s, "start": clock() - unpacked_s})

    async def reopen(self, name: str) -> Connection:
        """See `Backend.reopen`. A leased sandbox is found whichever host on this machine has it."""
        state = self._running()
        link = state.link
        if link.death is None and name in self._elsewhere:
            return await machine.enter(self._elsewhere[name], name)
        try:
            return await machine.enter(link.ready.socket, name)
        except TransportLost:
            link.check_alive(f"sandbox {name!r} is gone")
            raise
        except SandboxGone:
            if name in self._names:
                raise
            self._elsewhere[name] = await machine.find_leased(state.directory, name)
            return await machine.enter(self._elsewhere[name], name)

    async def delete(self, name: str, *, grace_s: float = 0.0) -> bool:
        """See `Backend.delete`. When the host is dead its warden removes everything, and this waits for that."""
        state = self._running()
        known = name in self._names
        try:
            existed = await _destroy(state.control, name, round(grace_s * 1000))
        except (SandboxGone, TransportLost):
            await state.link.settle()
            if state.link.death is None:
                raise
            await state.link.wait_removed()
            existed = known
        if not existed and not known:
            existed = await self._delete_elsewhere(state, name)
        self._names.discard(name)
        self._elsewhere.pop(name, None)
        return existed

    async def _delete_elsewhere(self, state: _Running, name: str) -> bool:
        try:
            return await machine.destroy(await machine.find_leased(state.directory, name), name)
        except SandboxGone:
            return False

    async def clear(self) -> None:
        """See `Backend.clear`. The host destroys one by one, whoever asks."""

    async def list(self) -> list[SandboxInfo]:
        """See `Backend.list`."""
        state = self._running()
        if state.link.death is not None:
            return []
        answer = await state.control.ask(r.ListSandboxes(id=state.control.next_id()), a.SandboxesOk)
        return [messages.info(row) for row in answer.sandboxes]

    async def renew(self, name: str, lease_s: float) -> None:
        """See `Backend.renew`."""
        state = self._running()
        state.link.check_alive(f"sandbox {name!r} is gone")
        ours = name in self._names
        socket = state.link.ready.socket if ours else await machine.find_leased(state.directory, name)
        await machine.renew(socket, name, lease_s)

    async def watch(self) -> AsyncIterator[Gone]:
        """See `Backend.watch`. The death of the host ends every sandbox, each with why `node_lost`."""
        state = self._running()
        queue: asyncio.Queue[Gone | None] = asyncio.Queue()
        follower = asyncio.create_task(_follow(state, queue), name="watch the host")
        self._watchers.add(queue)
        try:
            if state.link.death is not None:
                self._tell_death(queue, state.link.death)
            while (gone := await queue.get()) is not None:
                self._names.discard(gone.name)
                yield gone
            if follower.done() and not follower.cancelled():
                follower.result()
        finally:
            self._watchers.discard(queue)
            follower.cancel()
            await asyncio.wait([follower])

    async def probe(self) -> a.ProbeOk:
        """What this machine can do and what is missing: for `sandlot doctor`."""
        control = self._running().control
        return await control.ask(r.Probe(id=control.next_id()), a.ProbeOk)

    @property
    def mode(self) -> str:
        """The id mode that the host works in."""
        return self._running().link.ready.mode

    @property
    def host_pid(self) -> int:
        """The host's process."""
        return self._running().link.ready.pid

    @property
    def host_id(self) -> str:
        """The name of the host's directory below the runtime directory."""
        return self._running().link.ready.host

    @property
    def swept(self) -> tuple[str, ...]:
        """Dead hosts whose remains were removed when this backend was started."""
        return self._running().link.ready.swept

    async def sweep_cache(self) -> tuple[str, ...]:
        """Remove unpacked layers that were never finished and that nobody is working on; their digests."""
        return tuple(await self._running().images.sweep())

    # --- inside -------------------------------------------------------------------------------------------------------
    def _running(self) -> _Running:
        if self._state is None:
            raise Closed("the backend is not started or was closed", hint="use it as: async with sandlot.local() as provider")
        self._state.link.check_owner()
        return self._state

    def _host_died(self, how: str) -> None:
        _log.error("%s; its %d sandboxes are gone", how, len(self._names))
        for queue in self._watchers:
            self._tell_death(queue, how)

    def _tell_death(self, queue: asyncio.Queue[Gone | None], how: str) -> None:
        for name in sorted(self._names):
            queue.put_nowait(Gone(name, "node_lost", how))


async def _follow(state: _Running, queue: asyncio.Queue[Gone | None]) -> None:
    """Hand on what the host reports, until its connection ends while it lives; then None."""
    control = state.control
    try:
        feed = control.begin(r.Watch(id=control.next_id()), control.feed())
        try:
            while not feed.future.done():
                message = await feed.next()
                if message is not None:
                    queue.put_nowait(Gone(message.name, message.why, message.detail))
                feed.again = False  # a new link to the host: it reports from then on
            feed.future.result()
        finally:
            control.abandon(feed)
    except (SandboxGone, TransportLost):
        if not await state.link.dies_within(DEATH_NEWS_S):
            raise
    finally:
        if state.link.death is None:
            queue.put_nowait(None)


async def _destroy(control: Connection, name: str, grace_ms: int) -> bool:
    request = r.Destroy(id=control.next_id(), name=name, grace_ms=grace_ms)
    return (await control.ask(request, a.DestroyOk)).existed


async def _destroy_attached(control: Connection) -> bool:
    """Destroy what is attached. Whether leased sandboxes are left."""
    try:
        rows = (await control.ask(r.ListSandboxes(id=control.next_id()), a.SandboxesOk)).sandboxes
        doomed = [row.name for row in rows if row.owner == "attached"]
        for at in range(0, len(doomed), _DESTROYED_AT_ONCE):
            await asyncio.gather(*(_destroy(control, name, 0) for name in doomed[at : at + _DESTROYED_AT_ONCE]))
        return len(doomed) < len(rows)
    except (SandboxGone, TransportLost):
        return False  # the host is ending: nothing outlives it
