"""The session: one client's side of the contract, without sockets or clocks."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from sandlot import errors
from sandlot.limits import (
    DEFAULT_CAP_BYTES,
    INLINE_BYTES,
    KEEPALIVE_MS,
    LINK_DEAD_MS,
    MAX_CALLS,
    MAX_CHUNK_BYTES,
    WINDOW_BYTES,
)
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.protocol.calls import FACTS, Call
from sandlot.protocol.events import Arrived, Broken, Ended, Event, Opened, Restarted, Rewound, Writable
from sandlot.protocol.frames import encode
from sandlot.protocol.session import Session, SessionMisuse

TO_INIT = msgspec.msgpack.Decoder(r.ToInit | a.Error)
WELCOME = a.Welcome(version=1, role="init", name="box")
CHUNK = b"x" * MAX_CHUNK_BYTES


class Peer:
    """A session and the daemon that a test plays."""

    def __init__(self) -> None:
        self.session = Session()
        self.session.link_up()
        assert self.said() == [r.Hello((1,), "sandlot")]
        assert self.hear(WELCOME) == [Opened(WELCOME)]

    def hear(self, *messages: r.Message, now: float = 0.0) -> list[Event]:
        """What the session makes of messages from the daemon."""
        return self.session.receive(b"".join(map(encode, messages)), now)

    def said(self) -> list[Any]:
        """What the session sent since the last time."""
        data, messages = self.session.outgoing(), []
        while data:
            length = int.from_bytes(data[:4], "big")
            messages.append(TO_INIT.decode(data[4 : 4 + length]))
            data = data[4 + length :]
        return messages

    def begin(self, kind: Any, **fields: Any) -> Call:
        return self.session.begin(kind(id=self.session.next_id(), **fields), "owner")

    def exec(self, **fields: Any) -> Call:
        call = self.begin(r.Exec, **{"key": f"k{self.session._last_id}", "script": b"x"} | fields)
        assert [type(message) for message in self.said()] == [r.Exec]
        return call

    def cut(self) -> list[Event]:
        """The link breaks and a new one comes: events of both."""
        events = self.session.link_lost()
        self.session.link_up()
        self.said()
        return events + [event for event in self.hear(WELCOME) if not isinstance(event, Opened)]

    def breach(self, *messages: r.Message) -> str:
        """These messages end the connection; the text that the daemon is told."""
        events = self.hear(*messages)
        assert isinstance(events[-1], Broken)
        assert isinstance(events[-1].error, errors.ProtocolViolation)
        told = self.said()[-1]
        assert (told.id, told.code) == (0, "protocol_error")
        return str(told.message)


def encode_of(event: Event) -> bytes:
    """The message that ended a call, as bytes: equal messages may be of different classes."""
    assert isinstance(event, Ended)
    assert isinstance(event.outcome, r.Message)
    return encode(event.outcome)


# --- opening -----------------------------------------------------------------------------------------------------------
def test_refused_version_is_unsupported() -> None:
    """The daemon speaks nothing that we offer."""
    session = Session()
    session.link_up()
    (event,) = session.receive(encode(a.Error(id=0, code="version", message="only 7")), 0.0)
    assert isinstance(event, Broken)
    assert isinstance(event.error, errors.Unsupported)


@pytest.mark.parametrize(
    "message",
    [
        a.Welcome(version=2, role="init"),
        a.Welcome(version=1, role="host"),
        r.Pong(id=1),
        a.Exit(id=1, code=0),
    ],
)
def test_anything_but_a_fitting_hello_is_a_breach(message: r.Message) -> None:
    """Another version, another role, or no hello at all."""
    session = Session()
    session.link_up()
    (event,) = session.receive(encode(message), 0.0)
    assert isinstance(event, Broken)
    assert isinstance(event.error, errors.ProtocolViolation)


def test_new_link_to_another_sandbox_is_a_breach() -> None:
    """A reopened link must lead to where the first one led."""
    peer = Peer()
    peer.session.link_lost()
    peer.session.link_up()
    (event,) = peer.hear(a.Welcome(version=1, role="init", name="another"))
    assert isinstance(event, Broken)


def test_second_hello_is_a_breach() -> None:
    """Once is enough."""
    assert "hello" in Peer().breach(WELCOME)


# --- calls -------------------------------------------------------------------------------------------------------------
def test_command_ends_with_its_exit() -> None:
    """One frame there, one frame back."""
    peer = Peer()
    call = peer.exec()
    end = a.Exit(id=call.id, code=3, out=a.Kept(2, 2, 2, b"ab"))
    (event,) = peer.hear(end)
    assert isinstance(event, Ended)
    assert (event.call, encode_of(event)) == (call, encode(end))
    assert peer.session.calls == {}


def test_two_results_in_one_packet_both_arrive_also_before_a_breach() -> None:
    """What came before the breach is not lost with it."""
    peer = Peer()
    first, second = peer.exec(), peer.exec()
    ends = [a.Exit(id=call.id, code=0) for call in (first, second)]
    events = peer.hear(*ends, a.Exit(id=99, code=0))
    assert [encode_of(event) for event in events[:2]] == [encode(end) for end in ends]
    assert isinstance(events[2], Broken)


def test_answer_has_the_shape_of_its_request() -> None:
    """`ok` means what was asked, and a field that is missing is a breach."""
    peer = Peer()
    call = peer.begin(r.Stat, path=b"/a")
    answer = a.StatOk(id=call.id, kind="file", size=5)
    assert peer.hear(answer) == [Ended(call, answer)]
    call = peer.begin(r.Stat, path=b"/a")
    assert "shape" in peer.breach(a.Ok(id=call.id))


def test_error_ends_its_call_only() -> None:
    """Other calls go on."""
    peer = Peer()
    stat, command = peer.begin(r.Stat, path=b"/a"), peer.begin(r.Exec, key="k", script=b"x")
    (event,) = peer.hear(a.Error(id=stat.id, code="not_found", message="no"))
    assert isinstance(event, Ended)
    assert isinstance(event.outcome, FileNotFoundError)
    assert list(peer.session.calls) == [command.id]


@pytest.mark.parametrize("code", ["too_many", "capacity", "busy"])
def test_being_turned_away_is_a_retriable_error_and_no_result(code: str) -> None:
    """Too many calls is never dressed as a command that failed."""
    peer = Peer()
    call = peer.exec()
    (event,) = peer.hear(a.Error(id=call.id, code=code))
    assert isinstance(event, Ended)
    assert isinstance(event.outcome, errors.Capacity)
    assert event.outcome.retriable


def test_ids_are_not_used_again_while_alive_and_survive_their_end() -> None:
    """After the last number comes the first that is free."""
    session = Peer().session
    held = session.begin(r.Usage(id=session.next_id()), None)
    session._last_id = 0xFFFF_FFFF
    assert session.next_id() == held.id + 1


def test_more_calls_than_the_contract_allows_are_refused_here() -> None:
    """The limit is told as capacity, before the daemon has to."""
    peer = Peer()
    for _ in range(MAX_CALLS):
        peer.begin(r.Usage)
    with pytest.raises(errors.Capacity):
        peer.begin(r.Usage)


def test_ping_is_answered_at_once() -> None:
    """Either side may ask."""
    peer = Peer()
    peer.hear(r.Ping(id=7))
    assert peer.said() == [r.Pong(id=7)]


def test_every_request_has_facts() -> None:
    """A message that opens a call says how it ends and what a lost link means for it."""
    kinds = {kind for union in (r.ToInit, r.ToHost) for kind in union.__args__ if issubclass(kind, r.Request)}
    assert set(FACTS) == kinds


# --- breaches ------------------------------------------------------------------------------------------------------------
def test_output_must_be_contiguous() -> None:
    """Neither a gap nor a repetition."""
    for offset in (1, 3):
        peer = Peer()
        call = peer.exec(mode="stream")
        assert "offset" in peer.breach(a.Out(call.id, 1, 0, b"ab"), a.Out(call.id, 1, offset, b"c"))


def test_output_beyond_the_cap_is_a_breach() -> None:
    """A cap bounds this side's memory whatever the daemon says."""
    peer = Peer()
    call = peer.exec(cap_out=10)
    assert "cap" in peer.breach(a.Out(call.id, 1, 0, b"x" * 11))
    peer = Peer()
    call = peer.exec(cap_out=10)
    assert "cap" in peer.breach(a.Exit(id=call.id, code=0, out=a.Kept(11, 11, 11, b"x" * 11)))


@pytest.mark.parametrize(
    "kept",
    [
        a.Kept(5, 4, 4, b"abc"),
        a.Kept(5, 2, 2, b"abc"),
        a.Kept(2, 3, 0, b"abc"),
        a.Kept(9, 3, 4, b"abc"),
        a.Kept(0, 0, 0, b"abc"),
    ],
)
def test_lies_about_what_is_kept_are_breaches(kept: a.Kept) -> None:
    """kept is what came, head is within it, total is at least that."""
    peer = Peer()
    call = peer.exec()
    assert "kept" in peer.breach(a.Exit(id=call.id, code=0, out=kept))


@pytest.mark.parametrize(("code", "signal"), [(None, None), (0, 9)])
def test_exit_needs_exactly_one_of_code_and_signal(code: int | None, signal: int | None) -> None:
    """Neither both nor none."""
    peer = Peer()
    call = peer.exec()
    assert "exactly one" in peer.breach(a.Exit(id=call.id, code=code, signal=signal))


def test_streamed_command_may_not_end_with_bytes_missing() -> None:
    """What was written and what arrived agree at the end, or something was lost."""
    peer = Peer()
    call = peer.exec(mode="stream")
    assert "arrived" in peer.breach(a.Out(call.id, 1, 0, b"ab"), a.Exit(id=call.id, code=0, out=a.Kept(3, 3)))


def test_second_exit_is_a_breach() -> None:
    """A call ends once."""
    peer = Peer()
    call = peer.exec()
    assert "not live" in peer.breach(a.Exit(id=call.id, code=0), a.Exit(id=call.id, code=0))


@pytest.mark.parametrize(
    "message",
    [
        r.Data(1, 1, 0, b"x"),
        r.Entry(1, b"a", "dir"),
        a.Entries(1, ()),
        a.Gone(1, "n", "oom"),
        a.Ok(1),
        a.Gap(1, 1, 0, 5),
        r.Ack(1, 0, 1),
        r.Ack(1, 1, 0),
        a.Out(1, 0, 0, b"x"),
    ],
)
def test_messages_that_do_not_belong_to_a_command_are_breaches(message: r.Message) -> None:
    """Each kind of call takes its own answers only."""
    peer = Peer()
    assert peer.exec().id == 1
    peer.breach(message)


@pytest.mark.parametrize("message", [a.Exit(1, code=0), a.Started(1, 5), a.Out(1, 1, 0, b"x"), r.Data(1, 2, 0, b"x")])
def test_messages_that_do_not_belong_to_a_read_are_breaches(message: r.Message) -> None:
    """The same the other way round."""
    peer = Peer()
    assert peer.begin(r.Read, path=b"/a").id == 1
    peer.said()
    peer.breach(message)


def test_more_entries_than_asked_for_are_a_breach() -> None:
    """A listing's limit bounds this side's memory."""
    peer = Peer()
    call = peer.begin(r.ListFiles, path=b"/", limit=2)
    peer.said()
    entry = a.Listed(b"a", "file")
    assert peer.hear(a.Entries(call.id, (entry, entry))) != []
    peer.breach(a.Entries(call.id, (entry,)))


@pytest.mark.parametrize("path", [b"/etc/passwd", b"../x", b"a/../b", b"a//b", b"./a", b"a/", b"a\0b", b"a" * 5000])
def test_paths_that_lead_elsewhere_are_breaches(path: bytes) -> None:
    """An entry of a download stays below its root."""
    peer = Peer()
    call = peer.begin(r.Download, path=b"/repo")
    peer.said()
    peer.breach(r.Entry(call.id, path, "file"))


# --- flow control ----------------------------------------------------------------------------------------------------------
def test_what_is_consumed_is_acknowledged_by_half_windows() -> None:
    """Not every chunk, but early enough that the sender never stops for a reader that keeps up."""
    peer = Peer()
    call = peer.exec(mode="stream")
    acks = []
    for i in range(8):
        peer.hear(a.Out(call.id, 1, i * MAX_CHUNK_BYTES, CHUNK))
        peer.session.consumed(call, (1, (i + 1) * MAX_CHUNK_BYTES))
        acks += peer.said()
    half = WINDOW_BYTES // 2
    assert acks == [r.Ack(call.id, 1, n * half) for n in (1, 2, 3, 4)]


def test_data_beyond_the_window_is_a_breach() -> None:
    """A reader that does not consume bounds what may come."""
    peer = Peer()
    call = peer.exec(mode="stream")
    chunks = [a.Out(call.id, 1, i * MAX_CHUNK_BYTES, CHUNK) for i in range(WINDOW_BYTES // MAX_CHUNK_BYTES)]
    assert len(peer.hear(*chunks)) == len(chunks)
    assert "window" in peer.breach(a.Out(call.id, 1, WINDOW_BYTES, b"x"))


def test_each_stream_has_its_own_window() -> None:
    """A full standard output does not stop standard error."""
    peer = Peer()
    call = peer.exec(mode="stream")
    peer.hear(*(a.Out(call.id, 1, i * MAX_CHUNK_BYTES, CHUNK) for i in range(WINDOW_BYTES // MAX_CHUNK_BYTES)))
    assert [type(event) for event in peer.hear(a.Out(call.id, 2, 0, b"trouble"))] == [Arrived]


def test_sender_stops_at_the_window_and_goes_on_with_the_acknowledgement() -> None:
    """Never more than a window is under way."""
    peer = Peer()
    call = peer.exec(stdin_open=True)
    assert call.outbound is not None
    for _ in range(WINDOW_BYTES // MAX_CHUNK_BYTES):
        peer.session.send_stdin(call, CHUNK)
    assert call.outbound.room == 0
    with pytest.raises(SessionMisuse):
        peer.session.send_stdin(call, b"x")
    assert peer.hear(r.Ack(call.id, 0, 1000)) == [Writable(call)]
    assert call.outbound.room == 1000


@pytest.mark.parametrize("offsets", [(5, 4), (11,)])
def test_acknowledgements_go_forward_and_not_beyond_what_was_sent(offsets: tuple[int, ...]) -> None:
    """Anything else is a breach."""
    peer = Peer()
    call = peer.exec(stdin_open=True)
    peer.session.send_stdin(call, b"0123456789")
    peer.said()
    peer.breach(*(r.Ack(call.id, 0, offset) for offset in offsets))


def test_late_acknowledgement_of_an_ended_call_is_no_breach() -> None:
    """It may have crossed the end."""
    peer = Peer()
    call = peer.exec(stdin_open=True)
    peer.session.send_stdin(call, b"x")
    assert len(peer.hear(a.Exit(call.id, code=0), r.Ack(call.id, 0, 1))) == 1


def test_standard_input_of_an_attached_job_goes_on_where_the_daemon_says() -> None:
    """Nothing can be sent before that is known."""
    peer = Peer()
    call = peer.begin(r.Attach, key="job", output=False)
    assert call.outbound is not None
    assert call.outbound.room == 0
    peer.hear(r.Ack(call.id, 0, 70))
    peer.said()
    peer.session.send_stdin(call, b"more", eof=True)
    assert peer.said() == [r.Stdin(call.id, "job", 70, b"more", eof=True)]


# --- results that may be forgotten ------------------------------------------------------------------------------------------
def test_delivered_results_are_named_with_the_next_command() -> None:
    """Forgetting costs no message of its own."""
    peer = Peer()
    call = peer.exec(key="first")
    peer.hear(a.Exit(call.id, code=0))
    assert peer.said() == []
    assert peer.session.take_done() == ("first",)
    assert peer.session.take_done() == ()


def test_results_of_shell_runs_do_not_gather_at_the_daemon() -> None:
    """They are named without an exec to name them in, since a daemon keeps a bounded number."""
    peer, forgotten = Peer(), []
    for i in range(100):
        call = peer.begin(r.ShellRun, shell="s", key=f"s-{i}", script=b"x")
        peer.hear(a.Exit(call.id, code=0, alive=True))
        forgotten += [key for message in peer.said() if isinstance(message, r.Forget) for key in message.keys]
    assert forgotten == [f"s-{i}" for i in range(96)]


def test_large_results_are_forgotten_at_once() -> None:
    """A daemon does not hold megabytes until the next command."""
    peer = Peer()
    call = peer.exec(key="big")
    size = INLINE_BYTES
    peer.hear(a.Out(call.id, 1, 0, CHUNK), a.Exit(call.id, code=0, out=a.Kept(size + 1, size + 1, 0, b"x")))
    assert peer.said() == [r.Forget(("big",))]


def test_result_of_a_job_is_not_forgotten_by_following_it() -> None:
    """Another handle may still ask for it."""
    peer = Peer()
    call = peer.begin(r.Attach, key="job", output=False)
    peer.hear(a.Exit(call.id, code=0))
    assert peer.session.take_done() == ()


# --- cancelling ---------------------------------------------------------------------------------------------------------------
def test_abandoned_call_is_cancelled_and_brings_no_event() -> None:
    """Its output is dropped under flow control, its end closes the books."""
    peer = Peer()
    call = peer.exec(mode="stream")
    peer.session.abandon(call)
    assert peer.said() == [r.Cancel(call.id)]
    chunks = [a.Out(call.id, 1, i * MAX_CHUNK_BYTES, CHUNK) for i in range(4)]
    assert peer.hear(*chunks) == []
    assert [type(message) for message in peer.said()] == [r.Ack, r.Ack]
    assert peer.hear(a.Exit(call.id, signal=9, out=a.Kept(5 * MAX_CHUNK_BYTES, 5 * MAX_CHUNK_BYTES))) == []
    assert peer.session.calls == {}
    assert peer.said() == [r.Forget((str(call.key),))]


def test_call_that_was_never_sent_is_dropped_without_a_word() -> None:
    """There is nothing to cancel at the daemon."""
    peer = Peer()
    peer.session.link_lost()
    call = peer.begin(r.Usage)
    peer.session.abandon(call)
    assert peer.session.calls == {}


def test_released_job_goes_on() -> None:
    """Leaving a reader's loop stops no job, and what still comes is not a breach."""
    peer = Peer()
    call = peer.begin(r.Attach, key="job")
    peer.said()
    peer.session.release(call)
    assert peer.said() == []
    assert peer.hear(a.Out(call.id, 1, 0, b"x"), a.Error(call.id, "moved")) == []
    assert peer.session.calls == {}


# --- lost links ---------------------------------------------------------------------------------------------------------------
def test_command_of_which_nothing_was_heard_is_sent_again_with_its_key() -> None:
    """Its key makes sure that it does not run twice."""
    peer = Peer()
    call = peer.exec(key="once")
    assert peer.cut() == []
    assert peer.said() == [call.request]


def test_streamed_command_goes_on_from_the_byte_after_the_last() -> None:
    """Output is asked for from there, on each stream."""
    peer = Peer()
    call = peer.exec(key="k", mode="stream")
    peer.hear(a.Started(call.id, 7), a.Out(call.id, 1, 0, b"abc"), a.Out(call.id, 2, 0, b"d"))
    peer.session.consumed(call, (1, 3))
    peer.session.consumed(call, (2, 1))
    assert peer.cut() == []
    assert peer.said() == [r.Attach(call.id, "k", out_from=3, err_from=1)]
    end = a.Exit(call.id, code=0, out=a.Kept(5, 5), err=a.Kept(1, 1))
    events = peer.hear(r.Ack(call.id, 0, 0), a.Out(call.id, 1, 3, b"de"), end)
    assert [type(event) for event in events] == [Arrived, Ended]


def test_what_was_not_consumed_comes_again_so_that_memory_stays_bounded() -> None:
    """A reader that stands still does not gather a window with every lost link."""
    peer = Peer()
    call = peer.exec(key="k", mode="stream")
    peer.hear(a.Started(call.id, 7), a.Out(call.id, 1, 0, b"abc"), a.Out(call.id, 1, 3, b"def"))
    peer.session.consumed(call, (1, 3))
    assert peer.cut() == [Rewound(call)]
    assert peer.said() == [r.Attach(call.id, "k", out_from=3)]
    assert [type(event) for event in peer.hear(a.Out(call.id, 1, 3, b"def"))] == [Arrived]


def test_collected_command_goes_on_in_the_middle_of_its_result() -> None:
    """What of the kept bytes arrived is not asked for again."""
    peer = Peer()
    call = peer.exec(key="k")
    peer.hear(a.Out(call.id, 1, 0, CHUNK))
    peer.session.consumed(call, (1, MAX_CHUNK_BYTES))
    peer.cut()
    assert peer.said() == [r.Attach(call.id, "k", out_from=MAX_CHUNK_BYTES)]
    total = MAX_CHUNK_BYTES + 1
    assert len(peer.hear(a.Exit(call.id, code=0, out=a.Kept(total, total, 0, b"x")))) == 1


def test_unacknowledged_standard_input_is_sent_again_and_no_other() -> None:
    """From the last acknowledgement on, its end included."""
    peer = Peer()
    call = peer.exec(key="k", stdin_open=True)
    peer.session.send_stdin(call, b"one")
    peer.session.send_stdin(call, b"two", eof=True)
    peer.hear(r.Ack(call.id, 0, 3))
    peer.said()
    assert peer.cut() == [Writable(call)]
    assert peer.said() == [call.request, r.Stdin(call.id, "k", 3, b"two"), r.Stdin(call.id, "k", 6, eof=True)]


def test_standard_input_is_carried_on_by_the_next_call_to_the_same_job() -> None:
    """What a released call had sent and the daemon had not taken is sent again by the call that follows it."""
    peer = Peer()
    first = peer.begin(r.Attach, key="job")
    peer.hear(r.Ack(first.id, 0, 10))
    peer.session.send_stdin(first, b"lost?")
    peer.session.release(first)
    peer.session.link_lost()
    second = peer.session.begin(r.Attach(id=9, key="job", output=False), None, outbound=first.outbound)
    peer.session.link_up()
    peer.said()
    assert peer.hear(WELCOME)[1:] == [Writable(second)]
    assert peer.said() == [second.request, r.Stdin(9, "job", 10, b"lost?")]
    assert second.outbound is not None
    assert second.outbound.room == 0
    peer.hear(r.Ack(9, 0, 12))
    assert second.outbound.room == WINDOW_BYTES - 3


def test_daemon_that_no_longer_knows_a_command_is_a_lost_command() -> None:
    """Never run again, never passed off as the caller's mistake."""
    peer = Peer()
    call = peer.exec(key="k", mode="stream")
    peer.hear(a.Started(call.id, 7))
    peer.cut()
    (event,) = peer.hear(a.Error(call.id, "no_such_key"))
    assert isinstance(event, Ended)
    assert isinstance(event.outcome, errors.TransportLost)


def test_unknown_key_without_a_lost_link_is_the_callers_mistake() -> None:
    """The same code, another meaning."""
    peer = Peer()
    call = peer.begin(r.Attach, key="nobody")
    (event,) = peer.hear(a.Error(call.id, "no_such_key"))
    assert isinstance(event, Ended)
    assert isinstance(event.outcome, errors.BadRequest)


def test_harmless_requests_are_sent_again_from_their_beginning() -> None:
    """What had arrived of a read is void."""
    peer = Peer()
    call = peer.begin(r.Read, path=b"/a")
    peer.hear(r.Data(call.id, 1, 0, b"abc"))
    peer.said()
    assert peer.cut() == [Restarted(call)]
    assert peer.said() == [call.request]
    assert [type(event) for event in peer.hear(r.Data(call.id, 1, 0, b"abcd"), a.ReadOk(call.id, 4, 0, 0))] == [Arrived, Ended]


@pytest.mark.parametrize(
    "request_",
    [
        r.Signal(1, "k", 9, "tree"),
        r.Mkdir(1, b"/a", parents=True, exist_ok=False),
        r.Remove(1, b"/a"),
        r.ShellOpen(1, "s"),
    ],
)
def test_requests_that_must_not_happen_twice_are_told_as_lost(request_: r.Request) -> None:
    """Whether they happened is unknown, and says so."""
    peer = Peer()
    call = peer.session.begin(request_, None)
    peer.said()
    (event,) = peer.cut()
    assert isinstance(event, Ended)
    assert (event.call, type(event.outcome)) == (call, errors.TransportLost)
    assert peer.said() == []


@pytest.mark.parametrize("request_", [r.Mkdir(1, b"/a", parents=True, exist_ok=True), r.Remove(1, b"/a", missing_ok=True)])
def test_flags_that_make_a_second_time_harmless_are_used(request_: r.Request) -> None:
    """mkdir with exist_ok, remove with missing_ok."""
    peer = Peer()
    call = peer.session.begin(request_, None)
    assert peer.cut() == [Restarted(call)]


def test_calls_begun_while_there_is_no_link_wait_for_the_next() -> None:
    """Also those that must not happen twice: they have not happened once."""
    peer = Peer()
    peer.session.link_lost()
    call = peer.begin(r.Signal, key="k", signal=9, to="tree")
    assert peer.said() == []
    peer.session.link_up()
    peer.said()
    peer.hear(WELCOME)
    assert peer.said() == [call.request]


def test_cancelled_command_stays_cancelled_over_a_lost_link() -> None:
    """The cancel may have been lost with the link."""
    peer = Peer()
    call = peer.exec(key="k")
    peer.session.abandon(call)
    peer.cut()
    assert peer.said() == [r.Attach(call.id, "k", output=False), r.Cancel(call.id)]


def test_results_named_as_delivered_are_named_again_on_a_new_link() -> None:
    """The first time may have been lost, and a daemon keeps a bounded number."""
    peer = Peer()
    call = peer.exec(key="k")
    peer.hear(a.Exit(call.id, code=0))
    peer.session.take_done()
    peer.cut()
    assert peer.said() == [r.Forget(("k",))]


def test_link_may_break_again_and_again() -> None:
    """The same call survives any number of losses."""
    peer = Peer()
    call = peer.exec(key="k", mode="stream")
    peer.hear(a.Started(call.id, 7))
    for i in range(20):
        peer.hear(a.Out(call.id, 1, i, b"x"))
        peer.session.consumed(call, (1, i + 1))
        peer.cut()
        assert peer.said() == [r.Attach(call.id, "k", out_from=i + 1)]
    assert len(peer.hear(a.Exit(call.id, code=0, out=a.Kept(20, 20)))) == 1


# --- time ---------------------------------------------------------------------------------------------------------------------
def test_quiet_link_is_asked_and_then_given_up() -> None:
    """One ping for each quiet interval; dead after as many as the contract says."""
    peer = Peer()
    intervals = LINK_DEAD_MS // KEEPALIVE_MS
    dead = [peer.session.keepalive() for _ in range(intervals + 1)]
    assert dead == [False] * intervals + [True]
    assert [type(message) for message in peer.said()] == [r.Ping] * (intervals - 1)


def test_any_byte_keeps_the_link_alive() -> None:
    """Not only pongs: also half a frame."""
    peer = Peer()
    frame = encode(a.Error(id=1, code="x", message="y" * 50))
    for byte in frame[:50]:
        peer.session.receive(bytes([byte]), 0.0)
        assert not peer.session.keepalive()
        assert not peer.session.keepalive()


def test_overdue_call_ends_here_and_is_cancelled_there() -> None:
    """A bound that holds whatever the daemon does."""
    peer = Peer()
    call = peer.session.begin(r.Exec(id=1, key="k", script=b"x"), None, due=10.0)
    peer.said()
    assert peer.session.next_due() == 10.0
    assert peer.session.overdue(9.9) == []
    (event,) = peer.session.overdue(10.0)
    assert isinstance(event, Ended)
    assert (event.call, type(event.outcome)) == (call, errors.DeadlineExceeded)
    assert peer.said() == [r.Cancel(1)]
    assert peer.hear(a.Exit(1, signal=9), now=11.0) == []


def test_patience_begins_anew_with_whatever_arrives() -> None:
    """A transfer may take hours, but not stand still."""
    peer = Peer()
    call = peer.session.begin(r.Read(id=1, path=b"/a"), None, due=60.0, patience_s=60.0)
    peer.hear(r.Data(1, 1, 0, b"x"), now=50.0)
    assert call.due == 110.0


def test_closing_ends_every_call_with_an_error_of_its_own() -> None:
    """A raised error gathers a traceback, so none is shared."""
    peer = Peer()
    peer.exec()
    peer.exec()
    events = peer.session.close(errors.SandboxGone("it died", why="oom"))
    outcomes = [event.outcome for event in events if isinstance(event, Ended)]
    assert [getattr(outcome, "why", "") for outcome in outcomes] == ["oom", "oom"]
    assert outcomes[0] is not outcomes[1]
    with pytest.raises(SessionMisuse):
        peer.begin(r.Usage)


def test_default_cap_is_not_sent() -> None:
    """An ordinary command is a small message."""
    assert len(encode(r.Exec(id=1, key="k", script=b"true", cap_out=DEFAULT_CAP_BYTES))) < 40
