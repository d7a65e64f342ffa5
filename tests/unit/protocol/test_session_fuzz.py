"""Whatever a daemon sends, a session answers with events or with one breach; its memory stays bounded."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sandlot.errors import ProtocolViolation, SandlotError
from sandlot.limits import MAX_CHUNK_BYTES, WINDOW_BYTES
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.protocol.events import Arrived, Broken, Ended, Opened, Restarted, Rewound, Writable
from sandlot.protocol.frames import PREFIX_BYTES, encode
from sandlot.protocol.session import Session

IDS = st.integers(0, 6)
OFFSETS = st.sampled_from([0, 1, 3, 70_000, MAX_CHUNK_BYTES, WINDOW_BYTES, 2**40, 2**63 - 1])
DATA = st.sampled_from([0, 3, 70_000, MAX_CHUNK_BYTES, MAX_CHUNK_BYTES + 1]).map(bytes)
STREAMS = st.integers(0, 2)
KEPT = st.builds(a.Kept, total=OFFSETS, kept=OFFSETS, head=OFFSETS, d=DATA)
PATHS = st.sampled_from([b"", b"a", b"a/b", b"../x", b"/etc", b"a//b", b"a\0", b"..", b"a/."])
KINDS = st.sampled_from(["file", "dir", "link", "hard", "whiteout", "gone"])
CODES = st.sampled_from(["not_found", "too_many", "moved", "no_such_key", "cancelled", "internal", "made_up"])
OPTIONAL = st.none() | OFFSETS

MESSAGES: st.SearchStrategy[r.Message] = st.one_of(
    st.builds(a.Out, id=IDS, s=STREAMS, off=OFFSETS, d=DATA),
    st.builds(r.Data, id=IDS, s=STREAMS, off=OFFSETS, d=DATA, at=OPTIONAL),
    st.builds(a.Gap, id=IDS, s=STREAMS, start=OFFSETS, end=OFFSETS),
    st.builds(r.Ack, id=IDS, s=STREAMS, off=OFFSETS),
    st.builds(a.Started, id=IDS, pid=st.integers(0, 99)),
    st.builds(a.Exit, id=IDS, code=st.none() | st.just(0), signal=st.none() | st.just(9), out=KEPT, err=KEPT),
    st.builds(a.Error, id=IDS, code=CODES, message=st.text(max_size=20)),
    st.builds(r.Entry, id=IDS, path=PATHS, kind=KINDS, size=OPTIONAL, target=st.none() | PATHS),
    st.builds(
        a.Entries, id=IDS, entries=st.lists(st.builds(a.Listed, path=PATHS, kind=st.just("file")), max_size=3).map(tuple)
    ),
    st.builds(a.Ok, id=IDS),
    st.builds(a.ReadOk, id=IDS, size=OFFSETS, mode=st.just(0), mtime_ns=OFFSETS),
    st.builds(a.TransferOk, id=IDS),
    st.builds(a.ShellOk, id=IDS, pid=st.just(1), program=st.just(b"sh")),
    st.builds(r.Ping, id=IDS),
    st.builds(r.Pong, id=IDS),
    st.just(a.Welcome(version=1, role="init", name="box")),
    st.just(a.Gone(1, "n", "oom")),
)

REQUESTS: list[Any] = [
    lambda id_: r.Exec(id=id_, key=f"k{id_}", script=b"x", cap_out=100_000),
    lambda id_: r.Exec(id=id_, key=f"k{id_}", script=b"x", mode="stream", stdin_open=True),
    lambda id_: r.Exec(id=id_, key=f"k{id_}", script=b"x", mode="job"),
    lambda id_: r.Attach(id=id_, key="job"),
    lambda id_: r.ShellOpen(id=id_, key="s"),
    lambda id_: r.Read(id=id_, path=b"/a", limit=100_000),
    lambda id_: r.Write(id=id_, path=b"/a"),
    lambda id_: r.ListFiles(id=id_, path=b"/", limit=4),
    lambda id_: r.Download(id=id_, path=b"/a"),
    lambda id_: r.Upload(id=id_, path=b"/a"),
    lambda id_: r.Mkdir(id=id_, path=b"/a", parents=True, exist_ok=False),
]


class HostileDaemon(RuleBasedStateMachine):
    """Random calls, cancels and lost links on this side; random messages, in and out of place, from the other."""

    def __init__(self) -> None:
        super().__init__()
        self.session = Session()
        self.broken = False
        self.live: dict[int, Any] = {}
        self.received: dict[tuple[int, int], int] = {}
        self._open()

    def _open(self) -> None:
        self.session.link_up()
        self.session.outgoing()
        self._take(self.session.receive(encode(a.Welcome(version=1, role="init", name="box")), 0.0))

    def _take(self, events: list[Any]) -> None:
        for event in events:
            assert not self.broken, "an event after the breach"
            assert isinstance(event, (Opened, Arrived, Ended, Writable, Restarted, Rewound, Broken))
            if isinstance(event, Broken):
                assert isinstance(event.error, SandlotError)
                self.broken = True
            elif isinstance(event, Ended):
                assert self.live.pop(event.call.id) is event.call, "ended twice, or never begun"
            elif isinstance(event, Restarted):
                self.received = {key: n for key, n in self.received.items() if key[0] != event.call.id}
            elif isinstance(event, Rewound):
                for number, stream in event.call.inbound.items():
                    self.received[event.call.id, number] = stream.consumed
            elif isinstance(event, Arrived):
                self._arrived(event)
        if self.broken:
            self._take_end(self.session.close(ProtocolViolation("broken")))

    def _take_end(self, events: list[Any]) -> None:
        assert all(isinstance(event, Ended) for event in events)
        for event in events:
            self.live.pop(event.call.id)

    def _arrived(self, event: Arrived) -> None:
        assert self.live[event.call.id] is event.call
        message = event.message
        if isinstance(message, (a.Out, r.Data)):
            key = (message.id, message.s)
            assert message.off == self.received.get(key, 0), "not contiguous"
            self.received[key] = message.off + len(message.d)
            assert len(message.d) <= MAX_CHUNK_BYTES
        elif isinstance(message, a.Gap):
            self.received[message.id, message.s] = message.end
        elif isinstance(message, r.Entry):
            assert b".." not in message.path.split(b"/")
            assert not message.path.startswith(b"/")

    @precondition(lambda self: not self.broken and len(self.live) < 5)
    @rule(which=st.sampled_from(REQUESTS), id_=st.integers(1, 6))
    def begin(self, which: Any, id_: int) -> None:
        if id_ in self.session.calls:
            return
        self.received = {key: n for key, n in self.received.items() if key[0] != id_}
        call = self.session.begin(which(id_), None)
        self.live[call.id] = call

    @precondition(lambda self: not self.broken and self.live)
    @rule(data=st.data())
    def abandon(self, data: st.DataObject) -> None:
        call = self.live.pop(data.draw(st.sampled_from(sorted(self.live))))
        self.session.abandon(call)

    @precondition(lambda self: not self.broken and self.live)
    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        call = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        for number, stream in call.inbound.items():
            self.session.consumed(call, (number, stream.received))

    @precondition(lambda self: self.broken)
    @rule()
    def start_over(self) -> None:
        assert not self.live, "a call outlived the session"
        self.session, self.broken, self.received = Session(), False, {}
        self._open()

    @precondition(lambda self: not self.broken)
    @rule()
    def cut(self) -> None:
        self._take(self.session.link_lost())
        self._open()

    @precondition(lambda self: not self.broken)
    @rule(message=MESSAGES)
    def hear(self, message: r.Message) -> None:
        self._take(self.session.receive(encode(message), 0.0))

    @precondition(lambda self: not self.broken and self.live)
    @rule(data=st.data(), chunk=DATA)
    def hear_what_fits(self, data: st.DataObject, chunk: bytes) -> None:
        """The next chunk in order, so that runs get beyond the first message."""
        call = self.live[data.draw(st.sampled_from(sorted(self.live)))]
        for number, stream in list(call.inbound.items()):
            kind = a.Out if a.Out in call.facts.arrives else r.Data
            self._take(self.session.receive(encode(kind(id=call.id, s=number, off=stream.received, d=chunk)), 0.0))
            if self.broken or call.id not in self.live:
                return

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.session._incoming.held_bytes == 0
        for call in self.session.calls.values():
            for stream in call.inbound.values():
                assert stream.received - stream.acked <= WINDOW_BYTES or a.Gap in call.facts.arrives
        sent = self.session.outgoing()
        while sent:
            length = int.from_bytes(sent[:PREFIX_BYTES], "big")
            sent = sent[PREFIX_BYTES + length :]


TestHostileDaemon = HostileDaemon.TestCase
TestHostileDaemon.settings = settings(max_examples=150, stateful_step_count=25, deadline=None)


@settings(deadline=None)
@given(st.lists(st.binary(max_size=300), max_size=20))
def test_any_bytes_on_an_open_link_are_events_or_one_breach(chunks: list[bytes]) -> None:
    """Not even framed."""
    session = Session()
    session.link_up()
    session.receive(encode(a.Welcome(version=1, role="init")), 0.0)
    session.begin(r.Exec(id=1, key="k", script=b"x"), None)
    for chunk in chunks:
        events = session.receive(chunk, 0.0)
        if events and isinstance(events[-1], Broken):
            return
    assert session._incoming.held_bytes <= sum(map(len, chunks))
