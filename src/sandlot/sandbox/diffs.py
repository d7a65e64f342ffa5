"""What differs from the image below a path, as a value: bounded, on disk when large, to be looked at, filtered and applied."""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import IO, Final

from msgspec.structs import replace as with_fields

from sandlot.errors import BadRequest, Closed, ProtocolViolation, SandboxFileError
from sandlot.limits import MAX_CHUNK_BYTES
from sandlot.protocol.calls import check_entry
from sandlot.protocol.fields import EntryKind
from sandlot.protocol.requests import Entry
from sandlot.sandbox.trees import Item, Piece

_IN_MEMORY_BYTES: Final = 4 * 2**20
"""Beyond this a diff's data goes to a temporary file without a name."""
_MOST_ENTRIES: Final = 1_000_000


class _Spool:
    """Bytes that are appended and read again from any place: in memory while few."""

    def __init__(self) -> None:
        self._memory: bytearray | None = bytearray()
        self._file: IO[bytes] | None = None
        self.size = 0

    def append(self, data: bytes) -> int:
        """Where it was put."""
        position = self.size
        if self._memory is not None and self.size + len(data) > _IN_MEMORY_BYTES:
            self._file = tempfile.TemporaryFile(prefix="sandlot-diff-")  # noqa: SIM115 - it lives as long as the diff
            self._file.write(self._memory)
            self._memory = None
        if self._memory is not None:
            self._memory += data
        elif self._file is not None:
            self._file.write(data)
        else:
            raise Closed("the diff was closed")
        self.size += len(data)
        return position

    def read(self, position: int, count: int) -> bytes:
        if self._memory is not None:
            return bytes(self._memory[position : position + count])
        if self._file is None:
            raise Closed("the diff was closed")
        self._file.flush()
        return os.pread(self._file.fileno(), count, position)

    def close(self) -> None:
        self._memory = None
        if self._file is not None:
            self._file.close()
            self._file = None


@dataclass(frozen=True, slots=True)
class DiffEntry:
    """One thing that is new, changed or gone."""

    path: bytes
    """Relative to the path that was asked for; empty is that itself."""
    kind: EntryKind
    """`gone` for what was removed."""
    mode: int | None
    size: int
    target: bytes | None
    wire: Entry
    data: tuple[tuple[int, int, int], ...] = ()
    """Of a file: position in it, position in the spool, bytes."""


class Diff:
    """The changes below a path, from `Sandbox.changes`. `apply` it to another sandbox of the same image.

    Holds at most `max_bytes` of data, on disk beyond 4 MiB. Close it (or use `with`) to free that at once.
    Paths and contents come from inside a sandbox: look at them, never run them here.
    """

    def __init__(self, entries: tuple[DiffEntry, ...], spool: _Spool) -> None:
        self.entries = entries
        """Parents before children."""
        self._spool = spool

    def __repr__(self) -> str:
        return f"<Diff {len(self.entries)} entries, {self.data_bytes} bytes>"

    def __len__(self) -> int:
        return len(self.entries)

    def __bool__(self) -> bool:
        return bool(self.entries)

    def __enter__(self) -> Diff:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the data; filtered copies share it. Idempotent."""
        self._spool.close()

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(os.fsdecode(entry.path) for entry in self.entries)

    @property
    def data_bytes(self) -> int:
        """Bytes of file data."""
        return sum(count for entry in self.entries for _, _, count in entry.data)

    def read(self, path: str | bytes) -> bytes:
        """The new content of a file, holes as zeros, at most `max_bytes`.

        Raises:
            BadRequest: no such file in this diff, or it is too sparse to be shown whole (over 256 MiB).
        """
        name = os.fsencode(path)
        entry = next((entry for entry in self.entries if entry.path == name and entry.kind in ("file", "hard")), None)
        if entry is None:
            raise BadRequest(f"the diff has no file {os.fsdecode(name)!r}")
        if entry.kind == "hard":
            return self.read(entry.target or b"")
        if entry.size > 2**28:
            raise BadRequest(f"{os.fsdecode(name)!r} has {entry.size} bytes, too many to be read at once")
        content = bytearray(entry.size)
        for at, position, count in entry.data:
            content[at : at + count] = self._spool.read(position, count)
        return bytes(content)

    def filter(self, keep: Callable[[str], bool], *, merge: Callable[[str], bool] = lambda path: False) -> Diff:
        """Only the entries whose path `keep` accepts, with the directories above them.

        A hard link whose first name is left out becomes a file of its own. A directory that replaced another, and that `merge`
        accepts, keeps the other's content when it is applied. The copy shares this diff's data.
        """
        names = {entry.path: entry for entry in self.entries}
        kept = {entry.path for entry in self.entries if keep(os.fsdecode(entry.path))}
        above = {parent for path in kept for parent in _parents(path)}
        chosen = []
        for entry in self.entries:
            if entry.path not in kept and not (entry.kind == "dir" and entry.path in above):
                continue
            if entry.kind == "hard" and entry.target not in kept:
                first = names[entry.target or b""]
                chosen.append(replace(first, path=entry.path, wire=with_fields(first.wire, path=entry.path)))
            elif entry.wire.opaque and merge(os.fsdecode(entry.path)):
                chosen.append(replace(entry, wire=with_fields(entry.wire, opaque=False)))
            else:
                chosen.append(entry)
        return Diff(tuple(chosen), self._spool)

    def digest(self) -> str:
        """SHA-256 in hex over paths, kinds, modes, targets and contents; times and owners do not count."""
        total = hashlib.sha256()
        for entry in self.entries:
            total.update(repr((entry.path, entry.kind, entry.mode, entry.size, entry.target)).encode())
            for at, position, count in entry.data:
                total.update(at.to_bytes(8, "big"))
                total.update(self._spool.read(position, count))
        return total.hexdigest()

    def items(self) -> Iterator[Item]:
        """As they go over the wire."""
        for entry in self.entries:
            yield entry.wire
            for at, position, count in entry.data:
                for offset in range(0, count, MAX_CHUNK_BYTES):
                    yield Piece(at + offset, self._spool.read(position + offset, min(MAX_CHUNK_BYTES, count - offset)))


class DiffBuilder:
    """Collects the entries and data of one answer to `changes`."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.restart()

    def restart(self) -> None:
        self._entries: list[DiffEntry] = []
        self._files: set[bytes] = set()
        self._data: list[tuple[int, int, int]] = []
        self._spool = _Spool()
        self._position = 0
        self._whole = False

    def entry(self, entry: Entry) -> None:
        """
        Raises:
            ProtocolViolation: a hard link to what did not come before.
            SandboxFileError: more entries than a diff holds (EFBIG).
        """
        check_entry(entry)
        self._seal()
        if len(self._entries) >= _MOST_ENTRIES:
            raise SandboxFileError(f"more than {_MOST_ENTRIES} things changed", number=errno.EFBIG)
        if entry.kind == "hard" and entry.target not in self._files:
            raise ProtocolViolation("a hard link to what did not come before")
        if entry.kind == "file":
            self._files.add(entry.path)
        self._entries.append(DiffEntry(entry.path, entry.kind, entry.mode, entry.size or 0, entry.target, entry))

    def data(self, at: int | None, data: bytes) -> None:
        """Raises as `entry`; `SandboxFileError` (EFBIG) when there is more than `max_bytes`."""
        if not self._entries or self._entries[-1].kind != "file":
            raise ProtocolViolation("data that belongs to no file")
        position = self._position if at is None else at
        if position + len(data) > self._entries[-1].size:
            raise ProtocolViolation("data beyond the size of its file")
        if self._spool.size + len(data) > self._max_bytes:
            raise SandboxFileError(f"the changes have more than max_bytes={self._max_bytes} of data", number=errno.EFBIG)
        self._data.append((position, self._spool.append(data), len(data)))
        self._position = position + len(data)

    def finish(self) -> None:
        """Everything has come: from now on the data belongs to the diff."""
        self._seal()
        self._whole = True

    def close(self) -> None:
        """Free everything, when no diff is to be made of it."""
        if not self._whole:
            self._spool.close()

    def diff(self) -> Diff:
        return Diff(tuple(self._entries), self._spool)

    def _seal(self) -> None:
        if self._data:
            self._entries[-1] = replace(self._entries[-1], data=tuple(self._data))
        self._data, self._position = [], 0


def _parents(path: bytes) -> Iterator[bytes]:
    while path:
        path = path.rpartition(b"/")[0]
        yield path
