"""What a session knows of one live call, and the facts about each kind of request, as tables."""

from __future__ import annotations

from collections import deque
from typing import Any, Final, Literal, NamedTuple

import msgspec

from sandlot.errors import ProtocolViolation
from sandlot.limits import MAX_CHUNK_BYTES, MAX_PATH_BYTES, WINDOW_BYTES
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.protocol.fields import STDERR, STDOUT

Recovery = Literal["resend", "attach", "fail"]
"""What a lost link means for a call that was sent.

resend: it has the same effect twice as once, so it is sent again as it was. attach: it is a command, found again by its key and
continued. fail: whether it happened is unknown, so the caller is told `TransportLost`.
"""


class Facts(NamedTuple):
    """How calls of one kind go. `shape` decodes the closing `ok`; None: an `exit` or `started` closes the call."""

    recovery: Recovery
    arrives: tuple[type[r.Message], ...] = ()
    shape: msgspec.msgpack.Decoder[Any] | None = None


def _ok(shape: type[a.Ok], *arrives: type[r.Message], recovery: Recovery = "resend") -> Facts:
    return Facts(recovery, arrives, msgspec.msgpack.Decoder(shape))


FACTS: Final[dict[type[r.Request], Facts]] = {
    r.Exec: Facts("attach", (a.Started, a.Out)),
    r.Attach: Facts("attach", (a.Started, a.Out, a.Gap)),
    r.ShellRun: Facts("attach", (a.Started, a.Out)),
    r.ShellOpen: _ok(a.ShellOk, recovery="fail"),
    r.ShellClose: _ok(a.Ok, recovery="fail"),
    r.Signal: _ok(a.Ok, recovery="fail"),
    r.Resize: _ok(a.Ok),
    r.Read: _ok(a.ReadOk, r.Data),
    r.Write: _ok(a.WriteOk),
    r.Stat: _ok(a.StatOk),
    r.ListFiles: _ok(a.ListOk, a.Entries),
    r.Mkdir: _ok(a.Ok, recovery="fail"),
    r.Remove: _ok(a.Ok, recovery="fail"),
    r.Upload: _ok(a.TransferOk),
    r.Download: _ok(a.TransferOk, r.Entry, r.Data),
    r.Changes: _ok(a.TransferOk, r.Entry, r.Data),
    r.Usage: _ok(a.UsageOk),
    r.Processes: _ok(a.ProcessesOk),
    r.Quiesce: _ok(a.ProcessesOk),
    r.Reset: _ok(a.ResetOk),
    r.RenewLease: _ok(a.Ok),
    r.Create: _ok(a.CreateOk, recovery="fail"),
    r.Enter: _ok(a.Ok, recovery="fail"),
    r.Destroy: _ok(a.DestroyOk, recovery="fail"),
    r.ListSandboxes: _ok(a.SandboxesOk),
    r.Renew: _ok(a.Ok),
    r.Watch: _ok(a.Ok, a.Gone, recovery="fail"),
    r.Probe: _ok(a.ProbeOk),
}


def recovery_of(request: r.Request) -> Recovery:
    """As the table says, but for requests whose own flags make a second time harmless."""
    if isinstance(request, r.Mkdir) and request.exist_ok:
        return "resend"
    if isinstance(request, r.Remove) and request.missing_ok:
        return "resend"
    return FACTS[type(request)].recovery


class Inbound:
    """The receiving end of one stream: contiguous, never beyond what was acknowledged plus the window, never beyond the cap."""

    __slots__ = ("acked", "cap", "consumed", "received")

    def __init__(self, start: int = 0, cap: int | None = None) -> None:
        self.received = self.consumed = self.acked = start
        self.cap = cap

    def take(self, offset: int, count: int) -> None:
        """Account for a chunk.

        Raises:
            ProtocolViolation: it repeats, skips, is too long, exceeds the window or the cap.
        """
        if offset != self.received:
            raise ProtocolViolation(f"a chunk at offset {offset} where {self.received} comes next")
        end = offset + count
        if count > MAX_CHUNK_BYTES:
            raise ProtocolViolation(f"a chunk of {count} bytes; at most {MAX_CHUNK_BYTES} are allowed")
        if end > self.acked + WINDOW_BYTES:
            raise ProtocolViolation("more data than was acknowledged plus the window")
        if self.cap is not None and end > self.cap:
            raise ProtocolViolation(f"more output than the cap of {self.cap} bytes")
        self.received = end

    def skip(self, start: int, end: int) -> None:
        """Account for a gap in a job's output.

        Raises:
            ProtocolViolation: it does not begin where the next byte would, or is empty.
        """
        if start != self.received or end <= start:
            raise ProtocolViolation(f"a gap from {start} to {end} where byte {self.received} comes next")
        self.received = end

    def consume(self, offset: int) -> bool:
        """The owner has used everything up to `offset`: whether that is to be acknowledged now (half a window is)."""
        self.consumed = offset
        if offset - self.acked < WINDOW_BYTES // 2:
            return False
        self.acked = offset
        return True

    def rewind(self) -> bool:
        """Go back to what was consumed, since the sender begins again from there; whether anything is void by that."""
        void = self.received > self.consumed
        self.received = self.acked = self.consumed
        return void


class Outbound:
    """The sending end of stream 0: never beyond the last acknowledgement plus the window; keeps what may be needed again."""

    __slots__ = ("acked", "ended", "kept", "known", "sent")

    def __init__(self, *, known: bool = True) -> None:
        self.sent = self.acked = 0
        self.known = known
        """False until the daemon has said where the standard input of a command goes on that was attached to."""
        self.ended = False
        self.kept: deque[tuple[int, bytes]] | None = deque()
        """Unacknowledged standard input, at most a window; None for file data, which its source can give again."""

    @property
    def room(self) -> int:
        return self.acked + WINDOW_BYTES - self.sent if self.known else 0

    def acknowledge(self, offset: int) -> None:
        """
        Raises:
            ProtocolViolation: it goes backwards or beyond what was sent.
        """
        if not self.known:
            self.known, self.sent = True, max(self.sent, offset)
        if not self.acked <= offset <= self.sent:
            raise ProtocolViolation(f"an acknowledgement of {offset}, outside {self.acked} to {self.sent}")
        self.acked = offset
        while self.kept and self.kept[0][0] + len(self.kept[0][1]) <= offset:
            self.kept.popleft()


class Call:
    """One live call. `owner` belongs to whoever began it; the session never looks at it."""

    __slots__ = (
        "abandoned", "collects", "due", "facts", "id", "inbound", "items_left", "key", "outbound", "owner", "patience_s",
        "reattached", "recovery", "request", "sent", "started",
    )  # fmt: skip

    def __init__(self, request: r.Request, owner: Any) -> None:
        self.id = request.id
        self.request = request
        self.owner = owner
        self.facts = FACTS[type(request)]
        self.recovery = recovery_of(request)
        self.key: str | None = None
        self.collects = False
        self.sent = self.started = self.abandoned = self.reattached = False
        self.due: float | None = None
        self.patience_s: float | None = None
        self.items_left: int | None = None
        self.inbound: dict[int, Inbound] = {}
        self.outbound: Outbound | None = None
        self.reset_streams()

    def reset_streams(self) -> None:
        """As at the beginning: before the call is sent for the first time, or again from its start."""
        request = self.request
        if isinstance(request, (r.Exec, r.ShellRun)):
            self.key = request.key
            self.collects = isinstance(request, r.ShellRun) or request.mode == "collect"
            caps = (request.cap_out, request.cap_err) if self.collects else (None, None)
            self.inbound = {STDOUT: Inbound(cap=caps[0]), STDERR: Inbound(cap=caps[1])}
            if isinstance(request, r.Exec) and request.stdin_open and self.outbound is None:
                self.outbound = Outbound()
        elif isinstance(request, r.Attach):
            self.key = request.key
            self.inbound = {STDOUT: Inbound(request.out_from), STDERR: Inbound(request.err_from)}
            if self.outbound is None:
                self.outbound = Outbound(known=False)
        elif isinstance(request, (r.Read, r.Download, r.Changes)):
            self.inbound = {STDOUT: Inbound(cap=request.limit if isinstance(request, r.Read) else None)}
        elif isinstance(request, (r.Write, r.Upload)):
            self.outbound = Outbound()
            self.outbound.kept = None
        elif isinstance(request, r.ListFiles):
            self.items_left = request.limit

    def stream(self, number: int) -> Inbound:
        """
        Raises:
            ProtocolViolation: nothing may arrive on that stream.
        """
        stream = self.inbound.get(number)
        if stream is None:
            raise ProtocolViolation(f"data on stream {number}")
        return stream

    def count_items(self, count: int) -> None:
        """
        Raises:
            ProtocolViolation: more entries than the listing's limit.
        """
        if self.items_left is not None:
            self.items_left -= count
            if self.items_left < 0:
                raise ProtocolViolation("more entries than were asked for")

    @property
    def closes_at_start(self) -> bool:
        return isinstance(self.request, r.Exec) and self.request.mode == "job"

    @property
    def follows(self) -> bool:
        """Every byte of output is to arrive before the exit."""
        if isinstance(self.request, r.Attach):
            return self.request.output
        return not self.collects and not self.abandoned


def check_exit(call: Call, message: a.Exit) -> None:
    """
    Raises:
        ProtocolViolation: the exit contradicts itself, the request, or what arrived before it.
    """
    if (message.code is None) == (message.signal is None):
        raise ProtocolViolation("an exit needs exactly one of code and signal")
    for number, kept in ((STDOUT, message.out), (STDERR, message.err)):
        stream = call.inbound[number]
        if call.collects and not call.abandoned:
            end = stream.received + len(kept.d)
            if not kept.head <= kept.kept <= kept.total or end != kept.kept:
                raise ProtocolViolation(f"stream {number}: {kept.kept} bytes kept of {kept.total}, but {end} arrived")
            if stream.cap is not None and end > stream.cap:
                raise ProtocolViolation(f"stream {number}: more output than the cap of {stream.cap} bytes")
        elif call.follows and (kept.d or stream.received != kept.total):
            raise ProtocolViolation(f"stream {number}: {kept.total} bytes written, but {stream.received} arrived")


def check_entry(entry: r.Entry) -> None:
    """
    Raises:
        ProtocolViolation: its path is absolute, too long, or has an empty, `.` or `..` part or a NUL byte.
    """
    for path in (entry.path, entry.target if entry.kind == "hard" else b""):
        if path is None or len(path) > MAX_PATH_BYTES or b"\0" in path:
            raise ProtocolViolation("an entry without a possible path")
        if path and not {b"", b".", b".."}.isdisjoint(path.split(b"/")):
            raise ProtocolViolation(f"an entry with the path {path[:200]!r}")
    if (entry.kind == "link") != (entry.target is not None) and entry.kind != "hard":
        raise ProtocolViolation(f"an entry of kind {entry.kind} with a target, or a link without")
