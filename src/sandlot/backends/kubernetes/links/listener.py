"""Dial-out: one listening socket for all sandboxes of a client, to which their daemons come.

A burst of thousands waits in the kernel's queue, which costs nothing. Of what was accepted at most `MAX_HALF_OPEN` may be
unauthenticated; while so many are, the next one waits, and who keeps a place without using it has to give it up.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from copy import copy
from typing import Final

from sandlot import errors
from sandlot.backends.kubernetes.links.reception import SocketStream, receive, tune
from sandlot.backends.kubernetes.links.registrar import Conflict, Refused, Registrar
from sandlot.connection import Connection
from sandlot.connection.wire import Wire
from sandlot.errors import SandlotError, Unsupported
from sandlot.interrupts import Begun
from sandlot.limits import MAX_HALF_OPEN

BACKLOG: Final = 4_096  # what Linux allows unless told otherwise (net.core.somaxconn)
CROWDED_S: Final = 1.0  # all places taken and none given back for so long: an honest daemon needs one for milliseconds
_SHORTAGE_PAUSE_S: Final = 0.1
_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger(__name__)

OnConflict = Callable[[str, str], None]
"""Called with a sandbox's name and what happened when somebody else claims to be its daemon."""


class Listener:
    """See the module. Made by `open`; `registrar` says who may come."""

    def __init__(self, sock: socket.socket, registrar: Registrar, on_conflict: OnConflict) -> None:
        """`sock` listens already, and is the listener's to close."""
        self.refused = 0
        """How many peers were sent away, for whatever reason."""
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._registrar = registrar
        self._on_conflict = on_conflict
        self._half_open: dict[asyncio.Task[None], None] = {}
        """In the order in which they came."""
        self._place_free = asyncio.Event()
        self._berths: dict[str, _Berth] = {}
        self._accepting = self._loop.create_task(self._accept())

    def __repr__(self) -> str:
        return f"<Listener {self._socket.getsockname()}, {len(self._half_open)} half open, {self.refused} refused>"

    @classmethod
    async def open(cls, registrar: Registrar, *, on_conflict: OnConflict, port: int = 0, host: str | None = None) -> Listener:
        """Listen on `port` (0: one that is free) of `host`, by default on every address of this machine.

        Raises:
            Unsupported: the port is taken, or this user may not have it.
        """
        try:
            sock = _listening(host, port)
        except OSError as error:
            raise Unsupported(f"cannot listen on port {port}: {error.strerror}", hint="choose another port, or 0") from error
        return cls(sock, registrar, on_conflict)

    @property
    def port(self) -> int:
        port: int = self._socket.getsockname()[1]
        return port

    @property
    def untaken(self) -> int:
        """Links that nobody has come for yet."""
        return sum(berth.occupied for berth in self._berths.values())

    async def arrival(self, name: str) -> Connection:
        """The newest link of a registered sandbox, as soon as there is one that nobody has taken yet.

        Waits until cancelled: how long is the caller's to say. Fit for `Connection.keep_open`.

        Raises:
            SandboxGone: the name is not registered, or is forgotten meanwhile.
            Closed: the listener was closed.
        """
        if self._accepting.done():
            raise errors.Closed("the listener was closed")
        if name not in self._registrar:
            raise errors.SandboxGone(f"{name} was deleted by this client")
        return await self._berths.setdefault(name, _Berth()).taken(self._loop)

    def forget(self, name: str) -> None:
        """The sandbox is deleted: who waits for it is told, and a link that nobody took is closed. Idempotent."""
        self._registrar.forget(name)
        berth = self._berths.pop(name, None)
        if berth is not None:
            berth.clear(errors.SandboxGone(f"{name} was deleted by this client"))

    async def aclose(self) -> None:
        """Stop listening; links that were taken stay open. Idempotent."""
        tasks = [self._accepting, *self._half_open]
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        self._socket.close()
        berths, self._berths = self._berths, {}
        for berth in berths.values():
            berth.clear(errors.Closed("the listener was closed"))

    # --- accepting ------------------------------------------------------------------------------------------------------
    async def _accept(self) -> None:
        while True:
            try:
                sock = await self._next()
            except OSError as error:
                if error.errno in _SHORTAGES:
                    _log.warning("no link can be accepted for now: %s", error.strerror)
                    await asyncio.sleep(_SHORTAGE_PAUSE_S)
                continue  # else one that was gone before it was accepted
            try:
                await self._wait_place()
            except BaseException:
                sock.close()
                raise
            task = self._loop.create_task(Begun(self._greet(sock)))
            self._half_open[task] = None
            task.add_done_callback(self._left)

    async def _next(self) -> socket.socket:
        """The next connection. The loop's own `sock_accept` loses one that has come just as it is cancelled."""
        while True:
            try:
                sock, _ = self._socket.accept()
            except BlockingIOError:
                ready: asyncio.Future[None] = self._loop.create_future()
                self._loop.add_reader(self._socket, _settle, ready)
                try:
                    await ready
                finally:
                    self._loop.remove_reader(self._socket)
            else:
                sock.setblocking(False)
                return sock

    async def _wait_place(self) -> None:
        """While places become free, whoever has one is working on it. When none does, the one that was taken first is idle."""
        while len(self._half_open) >= MAX_HALF_OPEN:
            self._place_free.clear()
            try:
                async with asyncio.timeout(CROWDED_S):
                    await self._place_free.wait()
            except TimeoutError:
                oldest = next(iter(self._half_open))
                oldest.cancel()
                await asyncio.wait([oldest])

    def _left(self, task: asyncio.Task[None]) -> None:
        self._half_open.pop(task, None)
        self._place_free.set()
        if task.cancelled():
            self.refused += 1
        elif (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "a link could not be received", "exception": error, "task": task})

    async def _greet(self, sock: socket.socket) -> None:
        try:
            connection = await receive(await SocketStream.own(sock), self._registrar)
        except Conflict as refusal:
            self.refused += 1
            self._on_conflict(refusal.name, str(refusal))
        except (Refused, SandlotError) as refusal:
            self.refused += 1
            _log.debug("a link was refused: %s", refusal)
        else:
            self._berths.setdefault(connection.name, _Berth()).arrived(connection)


class _Berth:
    """Where one sandbox's links come in: either somebody waits for the next one, or one waits to be taken."""

    __slots__ = ("_fresh", "_newest", "_waiting")

    def __init__(self) -> None:
        self._waiting: list[asyncio.Future[Connection]] = []
        self._fresh: Connection | None = None
        self._newest: Wire | None = None

    @property
    def occupied(self) -> bool:
        return self._fresh is not None

    def arrived(self, connection: Connection) -> None:
        """A daemon that comes again has given up its former link, which may look alive here for long: cut it, so that whoever
        uses it comes for this one."""
        former, self._newest = self._newest, connection.wire
        if not self._offer(connection) and former is not None:
            former.abort()

    async def taken(self, loop: asyncio.AbstractEventLoop) -> Connection:
        fresh, self._fresh = self._fresh, None
        if fresh is not None and fresh.wire is not None:
            return fresh
        waiter: asyncio.Future[Connection] = loop.create_future()
        self._waiting.append(waiter)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._offer(waiter.result())  # it came in the moment in which it was no longer waited for
            raise
        finally:
            self._waiting.remove(waiter)

    def clear(self, error: SandlotError) -> None:
        """Nobody is to come or to be waited for any more."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(copy(error))
        if self._fresh is not None:
            self._fresh.fail(error)

    def _offer(self, connection: Connection) -> bool:
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(connection)
                return True
        if self._fresh is not None:
            self._fresh.fail(errors.Closed("a newer link to the same sandbox has come"))
        self._fresh = connection
        return False


def _listening(host: str | None, port: int) -> socket.socket:
    if host is None:
        both = socket.has_dualstack_ipv6()
        family = socket.AF_INET6 if both else socket.AF_INET
        sock = socket.create_server(("", port), family=family, backlog=BACKLOG, dualstack_ipv6=both)
    else:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    sock.setblocking(False)
    tune(sock)
    return sock


def _settle(ready: asyncio.Future[None]) -> None:
    """The loop may call this again before anybody has woken up."""
    if not ready.done():
        ready.set_result(None)
