"""The append-only log of what happened: reports and views read it, and nothing else.

Kinds
    `sandbox.STATE`     a sandbox entered STATE (`sandlot.lifecycle`). data: what that state brought, such as
                        `queue_s`, `create_s`, `first_command_s` with `sandbox.usable` (and of `create_s`, as far as
                        the backend can tell, `request_s`, `schedule_s`, `pull_s`, `start_s`), `why` with
                        `sandbox.lost`, `deleting` or `gone`, `attempts` with `sandbox.gone`
    `create.failed`     one attempt failed. data: `error` (its kind), `message`, `retriable`, `attempt`
    `delete.failed`     one attempt failed. data: `error`, `message`, `attempt`
    `clear.failed`      deleting all in one go failed: each is deleted by itself. data: `error`, `message`
    `sweep.failed`      what exists could not be listed at the end. data: `message`
    `gate.slowed`       the pace was cut. data: `limit` (in flight), `why`
    `pool.*`, `rollout.*`, `exec` and `file` are appended by the layers above, which name them.

The log in memory is bounded: the oldest go first, and are counted. With a path every event also becomes one line of
JSON. Appending never raises, so that a full disk cannot stop a deletion: lines that could not be written wait in
memory, `failure` says why, and `flush` tries again and raises.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec

from sandlot.errors import BadRequest, WriteFailed

Scalar = str | int | float | bool | None
Data = Mapping[str, Scalar]

KEEP_EVENTS: Final = 100_000  # about 40 MB at worst; a rollout of 100 turns makes some 250
FLUSH_EVENTS: Final = 64  # lines a write: one system call for many events, little lost if this process is killed

_NOTHING: Final[Data] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened."""

    seq: int
    """1, 2, 3, ... within one log."""
    mono_s: float
    """Monotonic seconds: differences are durations."""
    wall_s: float
    """Unix time in seconds, for people and for joining logs."""
    kind: str
    sandbox: str = ""
    """The sandbox's name, or empty."""
    data: Data = field(default_factory=lambda: _NOTHING)


class EventWriter:
    """Whole lines of JSON, appended to one file; never half a line.

    A write that fails part of the way (a full disk, a quota) is taken back to the end of the last whole line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open for appending; a torn last line that a killed process left is cut off.

        Raises:
            WriteFailed: the file cannot be opened or written.
        """
        self.path = Path(path)
        try:
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            self._end = _whole_lines(self._file)
            os.ftruncate(self._file, self._end)
        except OSError as error:
            raise WriteFailed.from_os(error, self.path) from error
        self._encoder = msgspec.json.Encoder()

    def write(self, events: list[Event]) -> None:
        """Append these events, all or none.

        Raises:
            WriteFailed: nothing of them was written; what was there before is whole. Call again when there is room.
        """
        lines = b"".join(self._encoder.encode(_row(event)) + b"\n" for event in events)
        done = 0
        try:
            while done < len(lines):
                done += os.write(self._file, lines[done:])
        except OSError as error:
            os.ftruncate(self._file, self._end)
            raise WriteFailed.from_os(error, self.path) from error
        self._end += len(lines)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


@dataclass(slots=True, eq=False)
class EventLog:
    """Events of one run, in order. Not thread-safe: one log belongs to one event loop."""

    path: str | os.PathLike[str] | None = None
    """Also write every event to this file as one line of JSON. None: memory only."""
    keep: int = KEEP_EVENTS
    """How many events stay in memory; the oldest go first."""
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    failure: WriteFailed | None = None
    """Why the last write failed, until one succeeds."""
    _seq: int = 0
    _events: deque[Event] = field(default_factory=deque)
    _unwritten: list[Event] = field(default_factory=list)
    _write_at: int = FLUSH_EVENTS
    _lost: int = 0
    _writer: EventWriter | None = None

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise BadRequest(f"keep must be at least 1, got {self.keep}")
        self._events = deque(maxlen=self.keep)
        if self.path is not None:
            self._writer = EventWriter(self.path)

    def append(self, kind: str, sandbox: str = "", data: Data = _NOTHING) -> Event:
        """Add one event with the present times. Never raises for a full disk: see `failure`."""
        self._seq += 1
        event = Event(self._seq, self.clock(), self.wall(), kind, sandbox, data)
        self._events.append(event)
        if self._writer is not None:
            self._unwritten.append(event)
            if len(self._unwritten) >= self._write_at:
                self._try_write(self._writer)
        return event

    def flush(self) -> None:
        """Write what waits.

        Raises:
            WriteFailed: the disk is full or the file is gone; the events stay, and the next call tries again.
        """
        if self._writer is not None and self._unwritten:
            self._try_write(self._writer)
            if self.failure is not None:
                raise self.failure

    def since(self, seq: int) -> Iterator[Event]:
        """Events after number `seq` that are still in memory, oldest first: a reader keeps the last number it saw."""
        first = self._events[0].seq if self._events else self._seq + 1
        return islice(self._events, max(0, seq + 1 - first), None)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __len__(self) -> int:
        return len(self._events)

    @property
    def forgotten(self) -> int:
        """How many events have left memory."""
        return self._seq - len(self._events)

    @property
    def unwritten(self) -> int:
        """How many events wait to be written, and were not."""
        return len(self._unwritten)

    @property
    def lost(self) -> int:
        """How many events will never be in the file, because too many had to wait: at most twice `keep` do."""
        return self._lost

    def close(self) -> None:
        """Write what waits and close the file. Idempotent.

        Raises:
            WriteFailed: some events could not be written; they are still in memory.
        """
        try:
            self.flush()
        finally:
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def _try_write(self, writer: EventWriter) -> None:
        try:
            writer.write(self._unwritten)
        except WriteFailed as failure:
            self.failure = failure
            surplus = len(self._unwritten) - self.keep
            if surplus > 0:
                self._lost += surplus
                del self._unwritten[:surplus]
            self._write_at = max(FLUSH_EVENTS, 2 * len(self._unwritten))  # trying costs as much as what waits
        else:
            self.failure = None
            self._write_at = FLUSH_EVENTS
            self._unwritten.clear()


def read_events(path: str | os.PathLike[str]) -> Iterator[Event]:
    """The events of a file, in order. A torn last line, left by a process that was killed while writing, is left out.

    Raises:
        BadRequest: another line is not an event; the message names its number.
        OSError: the file cannot be read.
    """
    decoder = msgspec.json.Decoder(_Row)
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                return
            try:
                row = decoder.decode(line)
            except msgspec.DecodeError as error:
                raise BadRequest(f"{os.fspath(path)}: line {number} is not an event: {error}") from error
            yield Event(row.seq, row.mono_s, row.wall_s, row.kind, row.sandbox, MappingProxyType(row.data))


class _Row(msgspec.Struct, omit_defaults=True):
    seq: int
    mono_s: float
    wall_s: float
    kind: str
    sandbox: str = ""
    data: dict[str, Scalar] = msgspec.field(default_factory=dict)


def _row(event: Event) -> _Row:
    return _Row(event.seq, round(event.mono_s, 6), round(event.wall_s, 6), event.kind, event.sandbox, dict(event.data))


def _whole_lines(file: int) -> int:
    """Length of the file up to and including its last newline, found from the end in blocks."""
    block, end = 65_536, os.fstat(file).st_size
    while end:
        start = max(0, end - block)
        newline = os.pread(file, end - start, start).rfind(b"\n")
        if newline >= 0:
            return start + newline + 1
        end = start
    return 0
