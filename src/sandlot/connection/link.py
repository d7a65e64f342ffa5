"""The connection: bytes between a socket and a session, time for the session, and new links for lost ones."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from typing import Any, TypeVar, cast

from sandlot import errors
from sandlot.connection.reopening import reopened
from sandlot.connection.sinks import Brake, Contents, Feed, Output, Pages, Sink, Source
from sandlot.connection.wire import Listener, Wire
from sandlot.errors import SandlotError, TransportLost
from sandlot.limits import (
    MAX_CHUNK_BYTES,
    OPEN_TIMEOUT_S,
    REOPEN_WITHIN_S,
    REQUEST_PATIENCE_S,
)
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.protocol.calls import Outbound
from sandlot.protocol.events import Arrived, Ended, Event, Opened, Restarted, Rewound, Writable
from sandlot.protocol.fields import Role
from sandlot.protocol.session import KEEPALIVE_S, Session

Shape = TypeVar("Shape", bound=r.Message)
AnySink = TypeVar("AnySink", bound=Sink)


class Connection:
    """A link to a daemon on which any number of calls run at once. Made by `open`; closed by `aclose`, which is idempotent.

    Calls are made with a request that carries `next_id()`. A wait that is cancelled cancels the call at the daemon and harms no
    other call. With `keep_open` a lost link is replaced: commands go on from where their output broke off and never run twice.
    """

    def __init__(self, role: Role = "init") -> None:
        self._loop = asyncio.get_running_loop()
        self._session = Session(role)
        self._wire: Wire | None = None
        self._opened: asyncio.Future[None] | None = None
        self._reopen: Reopen | None = None
        self.reopen_within_s = REOPEN_WITHIN_S
        """How many seconds a lost link is tried to be replaced: whoever makes the link knows how long the other side waits."""
        self._reopening: asyncio.Task[None] | None = None
        self._failure: SandlotError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._keepalive_at = 0.0
        self._links_lost = 0
        self._brake = Brake(self._pause_reading, self._resume_reading)

    def __repr__(self) -> str:
        return f"<Connection {self.name or '?'} {self._session.state}, {len(self._session.calls)} calls>"

    # --- opening and closing --------------------------------------------------------------------------------------------
    @classmethod
    async def open(cls, sock: socket.socket, *, role: Role = "init", timeout_s: float = OPEN_TIMEOUT_S) -> Connection:
        """Say hello on a connected stream socket, which the connection then owns. Raises as `open_over`."""
        return await cls.open_over(lambda listener: Wire(listener).own(sock), role=role, timeout_s=timeout_s)

    @classmethod
    async def open_over(cls, bring: Bring, *, role: Role = "init", timeout_s: float | None = OPEN_TIMEOUT_S) -> Connection:
        """Say hello on the wire that `bring` makes for this connection, which then owns it.

        Raises:
            TransportLost: the other side closed before its hello. Retriable.
            DeadlineExceeded: no hello within `timeout_s` seconds (None: the caller sees to that). Retriable.
            Unsupported: no version of the wire contract in common.
            ProtocolViolation: the other side is no daemon of the expected role.
        """
        connection = cls(role)
        connection._wire = wire = await bring(connection)
        if wire.closed.done():
            raise TransportLost("the other side closed the link at once")
        try:
            await connection._say_hello(timeout_s)
        except BaseException as error:
            connection.fail(error if isinstance(error, SandlotError) else errors.Closed("opening was given up"))
            raise
        return connection

    async def _say_hello(self, timeout_s: float | None) -> None:
        self._opened = self._loop.create_future()
        self._session.link_up()
        self._flush()
        self._keepalive_at = self._loop.time() + KEEPALIVE_S
        self._set_timer(self._keepalive_at)
        try:
            async with asyncio.timeout(timeout_s):
                await self._opened
        except TimeoutError:
            raise errors.DeadlineExceeded(f"no hello from the daemon within {timeout_s:g} s") from None
        finally:
            self._opened = None

    async def become_sandbox(self, request: r.Create | r.Enter, shape: type[Shape]) -> Shape:
        """On a connection to a host: make or enter a sandbox, and turn this very connection into the link to it.

        Raises:
            As the request's answer says; the connection is of no use afterwards.
        """
        answer = await self.ask(request, shape, patience_s=None)
        self._session = Session("init")
        await self._say_hello(OPEN_TIMEOUT_S)
        return answer

    def keep_open(self, reopen: Reopen, *, within_s: float | None = None) -> None:
        """Replace a lost link by what `reopen()` gives, trying for `within_s` (None: `reopen_within_s`) seconds a loss."""
        self._reopen = reopen
        if within_s is not None:
            self.reopen_within_s = within_s

    def abort(self) -> None:
        """Cut the socket without a word, as a broken network would. For tests of what happens then."""
        if self._wire is not None:
            self._wire.abort()

    async def aclose(self) -> None:
        """Say bye and close the socket. Calls that are live end with `Closed`. Idempotent."""
        wire = self._wire
        self._session.bye()
        self._flush()
        self.fail(errors.Closed("the connection was closed by this client"))
        if self._reopening is not None:
            self._reopening.cancel()
            await asyncio.wait([self._reopening])
        if wire is not None:
            await asyncio.wait([wire.closed])  # awaited by itself it would be cancelled with the caller

    def fail(self, error: SandlotError) -> None:
        """End every call, now and later, with `error`, and close the socket. The first error counts."""
        if self._failure is not None:
            return
        self._failure = error
        if self._timer is not None:
            self._timer.cancel()
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(copy(error))
        self._dispatch(self._session.close(error))
        self._close_wire()

    # --- facts ----------------------------------------------------------------------------------------------------------
    @property
    def welcome(self) -> a.Welcome:
        """What the daemon said of itself."""
        if self._session.welcome is None:
            raise errors.Closed("the connection was never opened")
        return self._session.welcome

    @property
    def name(self) -> str:
        return self._session.welcome.name if self._session.welcome is not None else ""

    @property
    def failure(self) -> SandlotError | None:
        """Why the connection is of no more use; None while it is."""
        return self._failure

    @property
    def wire(self) -> Wire | None:
        """The socket in use; None between two links, and after the last."""
        return self._wire

    @property
    def links_lost(self) -> int:
        """How often the link broke so far."""
        return self._links_lost

    # --- calls ----------------------------------------------------------------------------------------------------------
    def next_id(self) -> int:
        return self._session.next_id()

    def take_done(self) -> tuple[str, ...]:
        """Keys of delivered results, to be named in the next exec."""
        return self._session.take_done()

    def begin(
        self,
        request: r.Request,
        sink: AnySink,
        *,
        bound_s: float | None = None,
        patience_s: float | None = None,
        outbound: Outbound | None = None,
    ) -> AnySink:
        """Send a request; its events go to `sink`. `bound_s`: give up after so long; `patience_s`: after so long without news.

        `outbound`: of a former call to the same command, whose standard input this one carries on.

        Raises:
            Capacity: too many live calls on this connection.
            Whatever ended the connection, when it is of no more use.
        """
        if self._failure is not None:
            raise copy(self._failure)
        wait_s = bound_s if bound_s is not None else patience_s
        due = None if wait_s is None else self._loop.time() + wait_s
        sink.call = self._session.begin(request, sink, due=due, patience_s=patience_s, outbound=outbound)
        if due is not None and (self._timer is None or due < self._timer.when()):
            self._set_timer(due)
        self._flush()
        return sink

    async def finish(self, sink: Sink) -> Any:
        """Wait for the end of a call. Cancelled: the call is cancelled at the daemon too (a command is killed)."""
        try:
            return await sink.future
        finally:
            if not sink.future.done() or sink.future.cancelled():
                self.abandon(sink)

    async def ask(self, request: r.Request, shape: type[Shape], *, patience_s: float | None = REQUEST_PATIENCE_S) -> Shape:
        """One request, one answer.

        Raises:
            TransportLost: the link broke, could not be restored, or the request must not be sent twice. Retriable.
            DeadlineExceeded: no answer for `patience_s` seconds. Retriable.
            And what the daemon's error code stands for (`protocol/codes.py`).
        """
        return cast(Shape, await self.finish(self.begin(request, Sink(self._loop), patience_s=patience_s)))

    def abandon(self, sink: Sink) -> None:
        """Nobody waits for this call any more: stop it at the daemon."""
        if isinstance(sink, Feed):
            self._brake.free(sink)
        self._session.abandon(sink.call)
        self._flush()

    def release(self, sink: Sink) -> None:
        """Stop following a command that goes on."""
        if isinstance(sink, Feed):
            self._brake.free(sink)
        self._session.release(sink.call)

    def forget(self, key: str) -> None:
        """The daemon may forget this command's result."""
        self._session.forget(key)
        self._session.forget_now()
        self._flush()

    # --- streams ----------------------------------------------------------------------------------------------------------
    def consumed(self, sink: Sink, part: a.Out | a.Gap | r.Data) -> None:
        """The reader has used this part and all before it on its stream."""
        upto = part.end if isinstance(part, a.Gap) else part.off + len(part.d)
        self._session.consumed(sink.call, (part.s, upto))
        self._flush()

    def sink(self) -> Sink:
        """A sink for a call with one answer."""
        return Sink(self._loop)

    def source(self) -> Source:
        """A sink for a call that sends data."""
        return Source(self._loop)

    def pages(self) -> Pages:
        """A sink for a listing."""
        return Pages(self._loop)

    def contents(self) -> Contents:
        """A sink for the data of one file."""
        return Contents(self._loop)

    def output(self) -> Output:
        """A sink for a command whose output is collected."""
        return Output(self._loop)

    def feed(self) -> Feed:
        """A sink for a call whose parts are read one by one."""
        return Feed(self._loop, self._brake)

    async def wait_room(self, sink: Source) -> int:
        """Wait until something may be sent on the call's stream 0: how many bytes; 0: it ended or began again, so stop."""
        while not sink.future.done() and not sink.again:
            outbound = sink.call.outbound
            if outbound is None:
                raise errors.BadRequest("the command has no open standard input", hint="start it with stdin_open=True")
            ready = self._wire is not None and self._wire.ready and self._session.state == "open" and sink.call.sent
            if ready and outbound.room > 0:
                return min(outbound.room, MAX_CHUNK_BYTES)
            await sink.changed()
        return 0

    def send_stdin(self, sink: Source, data: bytes, *, eof: bool = False) -> None:
        """At most what `wait_room` gave."""
        self._session.send_stdin(sink.call, data, eof=eof)
        self._flush()

    def send_data(self, sink: Source, data: bytes, *, at: int | None = None) -> None:
        """At most what `wait_room` gave."""
        self._session.send_data(sink.call, data, at=at)
        self._flush()

    def send_entry(self, sink: Source, entry: r.Entry) -> None:
        self._session.send_entry(sink.call, entry)
        self._flush()

    def send_end(self, sink: Source) -> None:
        self._session.send_end(sink.call)
        self._flush()

    # --- what its socket tells it ---------------------------------------------------------------------------------------
    def room(self) -> memoryview:
        return self._session.room()

    def received(self, count: int) -> None:
        if self._failure is None:
            self._dispatch(self._session.received(count, self._loop.time()))
            self._flush()

    def writable(self) -> None:
        for call in self._session.calls.values():
            call.owner.writable()

    def lost(self, wire: Wire, cause: Exception | None) -> None:
        if wire is not self._wire:
            return
        self._wire = None
        if self._failure is not None:
            return
        self._links_lost += 1
        opening = self._opened is not None
        self._dispatch(self._session.link_lost())
        text = f"the link to the daemon broke: {cause}" if cause is not None else "the daemon closed the link"
        if self._reopen is None or opening:
            self.fail(TransportLost(text))
        else:
            self._reopening = self._loop.create_task(self._open_again(self._reopen, text))

    # --- inside ---------------------------------------------------------------------------------------------------------
    def _flush(self) -> None:
        data = self._session.outgoing()
        if data and self._wire is not None:
            self._wire.send(data)

    def _dispatch(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Ended):
                event.call.owner.ended(event.outcome)
            elif isinstance(event, Arrived):
                upto = event.call.owner.arrived(event.message)
                if upto is not None:
                    self._session.consumed(event.call, upto)
            elif isinstance(event, Writable):
                event.call.owner.writable()
            elif isinstance(event, Restarted):
                event.call.owner.restarted()
            elif isinstance(event, Rewound):
                event.call.owner.rewound()
            elif isinstance(event, Opened):
                if self._opened is not None and not self._opened.done():
                    self._opened.set_result(None)
            else:
                self._flush()
                self.fail(event.error)

    def _pause_reading(self) -> None:
        if self._wire is not None:
            self._wire.pause()

    def _resume_reading(self) -> None:
        if self._wire is not None:
            self._wire.go_on()

    def _close_wire(self) -> None:
        if self._wire is not None:
            self._wire.close()

    # --- time -------------------------------------------------------------------------------------------------------------
    def _set_timer(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._on_timer)

    def _on_timer(self) -> None:
        now = self._loop.time()
        self._timer = None
        if now >= self._keepalive_at:
            self._keepalive_at = now + KEEPALIVE_S
            if self._session.keepalive():
                self._close_wire()
        self._dispatch(self._session.overdue(now))
        self._flush()
        if self._failure is None:
            due = self._session.next_due()
            self._set_timer(self._keepalive_at if due is None else min(due, self._keepalive_at))

    # --- lost links -------------------------------------------------------------------------------------------------------
    async def _open_again(self, reopen: Reopen, cause: str) -> None:
        try:
            fresh = await reopened(reopen, _is_usable, within_s=self.reopen_within_s, cause=cause)
            self._take_over(fresh)
        except SandlotError as error:
            self.fail(error)
        finally:
            self._reopening = None
            if self._wire is None:
                self.fail(TransportLost(f"the link was lost and reopening it failed: {cause}"))

    def _take_over(self, fresh: Connection) -> None:
        """Use the socket of a connection that was just opened."""
        wire, fresh._wire = fresh._wire, None
        assert wire is not None
        fresh_session, fresh._session = fresh._session, Session(self._session.role)
        fresh.fail(errors.Closed("its socket was taken over"))
        self._wire, wire.listener = wire, self
        self._dispatch(self._session.adopt(fresh_session))
        self._flush()


def _is_usable(connection: Connection) -> bool:
    return connection._wire is not None and connection._failure is None


Bring = Callable[[Listener], Awaitable[Wire]]
"""Makes a wire that tells this listener what comes."""

Reopen = Callable[[], Awaitable[Connection]]
"""Makes a new link to the same sandbox. Raises `SandboxGone` when there is none any more."""
