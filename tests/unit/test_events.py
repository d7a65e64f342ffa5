"""The event log: order, bounds, files that stay whole, full disks."""

from __future__ import annotations

import errno
import json
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.errors import BadRequest, WriteFailed
from sandlot.events import FLUSH_EVENTS, Event, EventLog, EventWriter, read_events


@contextmanager
def full_disk(room: int) -> Iterator[None]:
    """Files of this process may not grow beyond `room` bytes: the kernel refuses a write as a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    former = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, former)


def ticking() -> EventLog:
    times = iter(range(1_000_000))
    return EventLog(clock=lambda: float(next(times)), wall=lambda: 1e9)


def test_events_carry_number_times_and_data() -> None:
    """Numbers run from 1; both clocks are read once an event."""
    log = ticking()
    log.append("sandbox.intended", "a", {"owner": "attached"})
    log.append("sandbox.gone", "a")
    assert list(log) == [
        Event(1, 0.0, 1e9, "sandbox.intended", "a", {"owner": "attached"}),
        Event(2, 1.0, 1e9, "sandbox.gone", "a", {}),
    ]


def test_memory_is_bounded_and_says_what_it_forgot() -> None:
    """The oldest go first, and are counted."""
    log = EventLog(keep=10)
    for _ in range(25):
        log.append("x")
    assert ([event.seq for event in (next(iter(log)), list(log)[-1])], len(log), log.forgotten) == ([16, 25], 10, 15)


@pytest.mark.parametrize(("seq", "numbers"), [(0, [6, 7, 8]), (6, [7, 8]), (8, []), (99, [])])
def test_a_reader_goes_on_where_it_was(seq: int, numbers: list[int]) -> None:
    """`since` gives what came after a number, as far as it is still there."""
    log = EventLog(keep=3)
    for _ in range(8):
        log.append("x")
    assert numbers == [event.seq for event in log.since(seq)]


def test_the_file_holds_every_event_as_one_line(tmp_path: Path) -> None:
    """Also those that left memory long ago."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path, keep=5)
    for n in range(200):
        log.append("exec", "a", {"n": n, "text": "a\nb\u2028\x00", "none": None, "share": 0.5})
    log.close()
    assert [json.loads(line)["data"]["n"] for line in path.read_bytes().splitlines()] == list(range(200))
    events = list(read_events(path))
    assert (len(events), dict(events[7].data)) == (200, {"n": 7, "text": "a\nb\u2028\x00", "none": None, "share": 0.5})


def test_a_full_disk_is_told_and_loses_nothing(tmp_path: Path) -> None:
    """The failed write is taken back whole, appending goes on, and what waited is written once there is room."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.append("first", data={"text": "x" * 100})
    log.flush()
    before = path.read_bytes()
    with full_disk(len(before) + 150):
        for _ in range(FLUSH_EVENTS * 2):
            log.append("more", data={"text": "y" * 50})
        assert log.failure is not None
        with pytest.raises(WriteFailed, match=r"cannot write .*events\.jsonl") as caught:
            log.flush()
        assert path.read_bytes() == before
    assert isinstance(caught.value, OSError)
    assert (errno.EFBIG, str(path)) == (caught.value.errno, caught.value.filename)
    assert log.unwritten == FLUSH_EVENTS * 2
    log.close()
    assert list(range(1, FLUSH_EVENTS * 2 + 2)) == [event.seq for event in read_events(path)]
    assert [log.failure, log.unwritten, log.lost] == [None, 0, 0]


def test_a_disk_that_stays_full_does_not_fill_memory(tmp_path: Path) -> None:
    """At most `keep` events wait; the rest is lost, and counted."""
    log = EventLog(tmp_path / "events.jsonl", keep=100)
    with full_disk(0):
        for _ in range(1000):
            log.append("x")
        assert log.unwritten <= 200
        assert log.unwritten + log.lost == 1000
        with pytest.raises(WriteFailed):
            log.close()


def test_a_torn_last_line_is_cut_before_going_on(tmp_path: Path) -> None:
    """What a killed process left behind stays readable, and new lines begin on a line of their own."""
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    log.append("a")
    log.close()
    with path.open("ab") as file:
        file.write(b'{"seq":2,"mono')
    assert [event.kind for event in read_events(path)] == ["a"]
    again = EventLog(path)
    again.append("b")
    again.close()
    assert [event.kind for event in read_events(path)] == ["a", "b"]


@given(tail=st.binary(max_size=40), lines=st.integers(0, 3))
def test_opening_keeps_exactly_the_whole_lines(tmp_path_factory: pytest.TempPathFactory, tail: bytes, lines: int) -> None:
    """Whatever follows the last newline is cut, and nothing else."""
    path = tmp_path_factory.mktemp("log") / "e"
    content = b"l\n" * lines + tail
    path.write_bytes(content)
    EventWriter(path).close()
    assert path.read_bytes() == content[: content.rfind(b"\n") + 1]


def test_a_torn_tail_longer_than_a_block_is_cut(tmp_path: Path) -> None:
    """The last newline is found however far back it is."""
    path = tmp_path / "e"
    path.write_bytes(b"whole\n" + b"x" * 200_000)
    EventWriter(path).close()
    assert path.read_bytes() == b"whole\n"


def test_a_bad_line_is_named_by_its_number(tmp_path: Path) -> None:
    """A line in the middle that is no event is an error of the input, not a silent gap."""
    path = tmp_path / "e"
    log = EventLog(path)
    log.append("a")
    log.close()
    path.write_bytes(path.read_bytes() + b'{"seq": "three"}\n' + path.read_bytes())
    with pytest.raises(BadRequest, match="line 2 is not an event"):
        list(read_events(path))


def test_a_folder_that_is_not_there_is_said_at_once(tmp_path: Path) -> None:
    """Opening fails with a typed error and a hint, before anything has been done that could be lost."""
    with pytest.raises(WriteFailed, match="make the folder first"):
        EventLog(tmp_path / "missing" / "events.jsonl")


def test_closing_twice_is_fine_and_appending_after_it_stays_in_memory(tmp_path: Path) -> None:
    """A late event, such as that of a deletion, never raises."""
    path = tmp_path / "e"
    log = EventLog(path)
    log.append("a")
    log.close()
    log.close()
    log.append("late")
    assert (len(log), len(list(read_events(path)))) == (2, 1)
