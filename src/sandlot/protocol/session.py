"""One client's side of the wire contract as a state machine without a socket: calls in, bytes out; bytes in, events out.

    opening --hello--> open --link_lost--> detached --link_up--> opening ...      any --breach or close--> closed

A session outlives its links. When one is lost, calls that were sent are sent again, continued by their key, or failed, as
`calls.FACTS` says; calls begun meanwhile wait. Nothing here waits, reads a clock or knows asyncio: `now` is passed in.
Errors are split by blame: `ProtocolViolation` for the other side's breach, `SessionMisuse` for ours.
"""

from __future__ import annotations

from copy import copy
from typing import Any, Final, Literal

from msgspec.structs import replace

from sandlot import errors
from sandlot.errors import ProtocolViolation, SandlotError, TransportLost
from sandlot.limits import INLINE_BYTES, KEEPALIVE_MS, LINK_DEAD_MS, MAX_CALLS, MAX_MESSAGE_CHARS, WIRE_VERSION
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.protocol.calls import Call, Outbound, check_entry, check_exit
from sandlot.protocol.codes import error_from
from sandlot.protocol.events import Arrived, Broken, Ended, Event, Opened, Writable
from sandlot.protocol.fields import TO_SANDBOX, Role
from sandlot.protocol.frames import FrameBuffer, decode, decode_as, encode
from sandlot.protocol.resuming import Delivered, Said, begin, resume

KEEPALIVE_S: Final = KEEPALIVE_MS / 1000
_SILENT_TICKS: Final = LINK_DEAD_MS // KEEPALIVE_MS
"""Silence is counted in keepalive intervals that we saw pass, so that a client that was stopped does not blame the link."""

_MOST_UNTOLD: Final = 32
"""Delivered results that wait for an exec to be named in: runs of a shell name none, and a daemon keeps a bounded number."""

State = Literal["opening", "open", "detached", "closed"]


class SessionMisuse(RuntimeError):
    """The session was used against its rules by this client: our defect, never the daemon's."""


class Session:
    """See the module. After each call of a method send what `outgoing()` gives."""

    def __init__(self, role: Role = "init") -> None:
        self.role = role
        self.state: State = "detached"
        self.welcome: a.Welcome | None = None
        self.calls: dict[int, Call] = {}
        self._incoming = FrameBuffer()
        self._outgoing: list[bytes] = []
        self._last_id = 0
        self._silent_ticks = 0
        self._delivered = Delivered()

    # --- the link ---------------------------------------------------------------------------------------------------
    def link_up(self) -> None:
        """A fresh link: say hello on it."""
        if self.state != "detached":
            raise SessionMisuse(f"a new link in the state {self.state}")
        self.state = "opening"
        self._incoming = FrameBuffer()
        self._silent_ticks = 0
        self._outgoing = [encode(r.Hello(versions=(WIRE_VERSION,), client="sandlot"))]

    def adopt(self, fresh: Session) -> list[Event]:
        """Take over the link on which `fresh`, a session without calls, has exchanged hellos."""
        if self.state != "detached" or fresh.state != "open" or fresh.welcome is None or fresh.calls:
            raise SessionMisuse(f"taking over a link in the state {fresh.state} while {self.state}")
        self.state = "opening"
        self._incoming = fresh._incoming
        self._silent_ticks = 0
        self._outgoing = fresh._outgoing
        fresh.state = "closed"
        events: list[Event] = []
        try:
            self._open(fresh.welcome, events)
        except SandlotError as error:
            events.append(Broken(error))
        return events

    def link_lost(self) -> list[Event]:
        """The link is gone: fail what cannot be continued, keep the rest for the next link."""
        if self.state not in ("opening", "open"):
            return []
        self.state = "detached"
        self._outgoing = []
        events: list[Event] = []
        for call in list(self.calls.values()):
            if call.sent and (call.recovery == "fail" or (call.abandoned and call.recovery != "attach")):
                self._end(call, TransportLost("the link broke; whether the call took effect is unknown"), events)
        return events

    def close(self, error: SandlotError) -> list[Event]:
        """End every call with `error`; nothing works afterwards."""
        if self.state == "closed":
            return []
        self.state = "closed"
        events: list[Event] = []
        for call in list(self.calls.values()):
            self._end(call, copy(error), events)  # each waiter gets its own: a raised error gathers tracebacks
        return events

    # --- calls ------------------------------------------------------------------------------------------------------
    def next_id(self) -> int:
        """An id for the next request: not 0, not that of a live call."""
        while True:
            self._last_id = self._last_id % 0xFFFF_FFFF + 1
            if self._last_id not in self.calls:
                return self._last_id

    def begin(
        self,
        request: r.Request,
        owner: Any,
        *,
        due: float | None = None,
        patience_s: float | None = None,
        outbound: Outbound | None = None,
    ) -> Call:
        """Start a call. `due`: when to give up; `patience_s`: how long it may bring nothing, renewed by what arrives.

        `outbound`: of a former call to the same command, whose standard input this one carries on.

        Raises:
            Capacity: `MAX_CALLS` calls are live on this connection.
        """
        if self.state == "closed":
            raise SessionMisuse("a call on a closed session")
        if len(self.calls) >= MAX_CALLS:
            raise errors.Capacity(f"{MAX_CALLS} calls are already live on this connection")
        call = Call(request, owner)
        call.due, call.patience_s = due, patience_s
        if outbound is not None:
            call.outbound, outbound.known = outbound, False
        self.calls[call.id] = call
        if self.state == "open":
            self._say(begin(call))
        return call

    def abandon(self, call: Call) -> None:
        """Nobody waits for the call any more: stop it at the other side. No event of it follows."""
        if call.abandoned or call.id not in self.calls:
            return
        if not call.sent:
            del self.calls[call.id]
            return
        call.abandoned = True
        call.due = call.patience_s = None
        if self.state == "open":
            self._outgoing.append(encode(r.Cancel(id=call.id)))

    def release(self, call: Call) -> None:
        """As `abandon`, but a command goes on: this client only stops following it."""
        call.abandoned = True
        call.recovery = "fail"
        call.due = call.patience_s = None

    def consumed(self, call: Call, upto: tuple[int, int]) -> None:
        """The owner has used what arrived on a stream up to an offset."""
        stream, offset = upto
        if call.id in self.calls and call.inbound[stream].consume(offset) and self.state == "open":
            self._outgoing.append(encode(r.Ack(id=call.id, s=stream, off=offset)))

    def send_stdin(self, call: Call, data: bytes, *, eof: bool = False) -> None:
        """Standard input for a command; at most `call.outbound.room` bytes and one chunk."""
        outbound = self._outbound(call, data)
        offset = outbound.sent
        outbound.sent += len(data)
        outbound.ended = outbound.ended or eof
        if outbound.kept is not None and data:
            outbound.kept.append((offset, data))
        if self.state == "open" and call.sent and call.key is not None:
            self._outgoing.append(encode(r.Stdin(id=call.id, key=call.key, off=offset, d=data, eof=eof)))

    def send_data(self, call: Call, data: bytes, *, at: int | None = None) -> None:
        """File data for a write or an upload; at most `call.outbound.room` bytes and one chunk. Only on an open link."""
        outbound = self._outbound(call, data)
        self._outgoing.append(encode(r.Data(id=call.id, s=TO_SANDBOX, off=outbound.sent, d=data, at=at)))
        outbound.sent += len(data)

    def send_entry(self, call: Call, entry: r.Entry) -> None:
        self._outgoing.append(encode(replace(entry, id=call.id)))

    def send_end(self, call: Call) -> None:
        self._outgoing.append(encode(r.End(id=call.id)))

    def forget(self, key: str) -> None:
        """Nobody needs the result of this command any more: the daemon is told with the next one."""
        self._delivered.add(key)

    def take_done(self) -> tuple[str, ...]:
        """The keys to name in the next exec's `done`."""
        return self._delivered.take()

    def forget_now(self) -> None:
        """Name delivered results without waiting for the next command."""
        if self.state == "open" and (keys := self._delivered.take()):
            self._outgoing.append(encode(r.Forget(keys=keys)))

    def bye(self) -> None:
        if self.state == "open":
            self._outgoing.append(encode(r.Bye()))

    def outgoing(self) -> bytes:
        """What to send now, in order; empty when nothing."""
        parts = self._outgoing
        if len(parts) == 1:
            self._outgoing = []
            return parts[0]
        if not parts:
            return b""
        self._outgoing = []
        return b"".join(parts)

    # --- time -------------------------------------------------------------------------------------------------------
    def overdue(self, now: float) -> list[Event]:
        """To be called at `next_due()`: end and cancel every call whose time is up."""
        events: list[Event] = []
        for call in list(self.calls.values()):
            if call.due is not None and now >= call.due:
                events.append(Ended(call, errors.DeadlineExceeded("no answer from the daemon within the client's own bound")))
                self.abandon(call)
        return events

    def keepalive(self) -> bool:
        """To be called every `KEEPALIVE_S`. True: nothing was heard for `LINK_DEAD_MS`, the link is to be treated as lost."""
        if self.state not in ("open", "opening"):
            return False
        if self._silent_ticks >= _SILENT_TICKS:
            return True
        if self._silent_ticks and self.state == "open":
            self._outgoing.append(encode(r.Ping(id=self._silent_ticks)))
        self._silent_ticks += 1
        self._incoming.shrink()
        return False

    def next_due(self) -> float | None:
        """The earliest time at which a call becomes overdue."""
        return min((call.due for call in self.calls.values() if call.due is not None), default=None)

    # --- bytes in ---------------------------------------------------------------------------------------------------
    def room(self) -> memoryview:
        """Where to put the next received bytes."""
        return self._incoming.room()

    def received(self, count: int, now: float) -> list[Event]:
        """`count` bytes were put into `room()`. What they mean; a breach of the contract comes as `Broken`."""
        self._incoming.wrote(count)
        self._silent_ticks = 0
        events: list[Event] = []
        try:
            while (body := self._incoming.take()) is not None:
                message = decode(body)
                if message is not None:
                    self._handle(message, body, now, events)
        except ProtocolViolation as breach:
            text = str(breach)[:MAX_MESSAGE_CHARS]
            self._outgoing.append(encode(a.Error(id=0, code="protocol_error", message=text)))
            events.append(Broken(breach))
        except SandlotError as refusal:
            events.append(Broken(refusal))
        return events

    def receive(self, data: bytes | memoryview, now: float) -> list[Event]:
        """`room` and `received` in one, for whoever has the bytes already."""
        events: list[Event] = []
        while data:
            room = self.room()
            count = min(len(room), len(data))
            room[:count] = data[:count]
            events += self.received(count, now)
            if events and isinstance(events[-1], Broken):
                break
            data = data[count:]
        return events

    def _handle(self, message: r.Message, body: memoryview, now: float, events: list[Event]) -> None:
        if self.state != "open":
            self._handle_opening(message, events)
        elif isinstance(message, r.Ping):
            self._outgoing.append(encode(r.Pong(id=message.id)))
        elif isinstance(message, r.Pong):
            pass
        elif isinstance(message, a.Welcome):
            raise ProtocolViolation("a second hello")
        else:
            self._handle_answer(message, body, now, events)

    def _handle_opening(self, message: r.Message, events: list[Event]) -> None:
        if self.state != "opening":
            raise ProtocolViolation("data on a link that is not in use")
        if isinstance(message, a.Error):
            raise error_from(message)
        if not isinstance(message, a.Welcome):
            raise ProtocolViolation(f"{type(message).__struct_config__.tag} before hello")
        self._open(message, events)

    def _open(self, welcome: a.Welcome, events: list[Event]) -> None:
        if welcome.version != WIRE_VERSION:
            raise ProtocolViolation(f"hello with version {welcome.version}, which was not offered")
        if welcome.role != self.role:
            raise ProtocolViolation(f"hello from a daemon in the role {welcome.role!r} where {self.role!r} was expected")
        if self.welcome is not None and self.welcome.name != welcome.name:
            raise ProtocolViolation("the new link leads to another sandbox")
        self.welcome = welcome
        self.state = "open"
        self._incoming.opened()
        events.append(Opened(welcome))
        self._resume(events)

    def _handle_answer(self, message: Any, body: memoryview, now: float, events: list[Event]) -> None:
        call = self.calls.get(message.id)
        if call is None:
            self._handle_stray(message)
            return
        if call.patience_s is not None:
            call.due = now + call.patience_s
        if isinstance(message, a.Exit):
            if call.key is None or call.closes_at_start:
                raise ProtocolViolation("an exit for a call that is no running command")
            check_exit(call, message)
            self._end(call, message, events)
        elif isinstance(message, a.Error):
            self._end(call, self._error_of(call, message), events)
        elif isinstance(message, a.Ok):
            if call.facts.shape is None:
                raise ProtocolViolation("an ok where a command's exit ends the call")
            self._end(call, decode_as(body, call.facts.shape), events)
        elif isinstance(message, r.Ack):
            self._handle_ack(call, message, events)
        else:
            self._handle_part(call, message, events)

    def _handle_stray(self, message: Any) -> None:
        """A message for no live call: an acknowledgement may have crossed the end, anything else breaks the contract."""
        if isinstance(message, a.Error) and message.id == 0:
            raise error_from(message)
        if not isinstance(message, r.Ack):
            raise ProtocolViolation(f"{type(message).__struct_config__.tag} for call {message.id}, which is not live")

    def _handle_ack(self, call: Call, message: r.Ack, events: list[Event]) -> None:
        if message.s != TO_SANDBOX or (call.outbound is None and message.off > 0):
            raise ProtocolViolation("an acknowledgement of what was not sent")
        if call.outbound is None:
            return  # the answer to an attach, for a command without standard input
        call.outbound.acknowledge(message.off)
        if not call.abandoned:
            events.append(Writable(call))

    def _handle_part(self, call: Call, message: Any, events: list[Event]) -> None:
        if not isinstance(message, call.facts.arrives):
            raise ProtocolViolation(f"{type(message).__struct_config__.tag} in answer to {type(call.request).__name__.lower()}")
        if isinstance(message, a.Started):
            call.started = True
            if call.closes_at_start:
                self._end(call, message, events)
                return
        else:
            self._account(call, message)
        if not call.abandoned:
            events.append(Arrived(call, message))

    def _account(self, call: Call, message: Any) -> None:
        """Count what arrived against the call's bounds; of an abandoned call it is consumed at once."""
        if isinstance(message, r.Entry):
            check_entry(message)
        elif isinstance(message, a.Entries):
            call.count_items(len(message.entries))
        elif isinstance(message, (a.Out, r.Data, a.Gap)):
            stream = call.stream(message.s)
            if isinstance(message, a.Gap):
                stream.skip(message.start, message.end)
            else:
                stream.take(message.off, len(message.d))
            if call.abandoned:
                self.consumed(call, (message.s, stream.received))

    def _error_of(self, call: Call, message: a.Error) -> SandlotError:
        if message.code == "no_such_key" and call.reattached:
            return TransportLost("the link broke, and the daemon no longer knows the command")
        return error_from(message)

    # --- inside -----------------------------------------------------------------------------------------------------
    def _end(self, call: Call, outcome: r.Message | SandlotError, events: list[Event]) -> None:
        del self.calls[call.id]
        if not call.abandoned:
            events.append(Ended(call, outcome))
        if isinstance(outcome, a.Exit) and isinstance(call.request, (r.Exec, r.ShellRun)):
            self._delivered.add(call.request.key)
            if len(self._delivered) >= _MOST_UNTOLD or outcome.out.kept + outcome.err.kept > INLINE_BYTES:
                self.forget_now()

    def _outbound(self, call: Call, data: bytes) -> Outbound:
        outbound = call.outbound
        if outbound is None or outbound.ended or len(data) > outbound.room:
            raise SessionMisuse("data beyond what the call takes")
        return outbound

    def _say(self, said: Said) -> list[Event]:
        messages, events = said
        self._outgoing += map(encode, messages)
        return events

    def _resume(self, events: list[Event]) -> None:
        """Say again what the other side may have missed, in the order in which the calls began."""
        self._delivered.doubt()
        self.forget_now()
        for call in list(self.calls.values()):
            events += self._say(resume(call))
