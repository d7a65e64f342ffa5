"""What the members of a layer mean: names judged, markers of removal understood, parents named before children."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from sandlot.images.tarstream import Data, Malformed, Member
from sandlot.limits import MAX_PATH_BYTES
from sandlot.protocol.requests import Entry

_MARK: Final = b".wh."
_OPAQUE: Final = b".wh..wh..opq"
_MAX_NAME_BYTES: Final = 255  # NAME_MAX
_DEFAULT_DIR_MODE: Final = 0o755

ParentMode = Callable[[bytes], "int | None"]
"""The mode of a directory in the layers below, or None when there is none."""


@dataclass(slots=True)
class LayerReader:
    """Turns one layer's members into entries of an upload to a bare root.

    Directories are remembered by name and mode, other names by a hash: memory grows with their number, which
    `limit_inodes` bounds.
    """

    parent_mode: ParentMode
    limit_inodes: int
    leans_on_lower: bool = False
    """Some directory is used but not named in the layer and took its mode from below: the result fits this stack only."""
    skipped: int = 0
    """Members that a sandbox cannot have or does not need: fifos, device files below /dev."""
    _dirs: dict[bytes, int] = field(default_factory=dict)
    _others: set[int] = field(default_factory=set)
    """Hashes of the names that are no directories: keyed anew by each process, so nobody can make two of them meet."""
    _count: int = 0

    def entries(self, items: Iterator[Member | Data]) -> Iterator[Entry | Data]:
        """Entries (their `id` is 0) and data.

        Raises:
            Malformed: a name that is absolute or has `..`, a hard link that leaves the root, a name below
                a link or file, a device file, too many members.
        """
        latest: Entry | None = None
        for item in items:
            if isinstance(item, Data):
                if latest is not None and latest.kind == "file":
                    yield item
                continue
            latest = None
            for latest in self._member(item):
                self._count += 1
                if self._count > self.limit_inodes:
                    raise Malformed(f"it has more than {self.limit_inodes} files")
                yield latest

    def _member(self, member: Member) -> Iterator[Entry]:
        path = clean_path(member.path)
        parent, _, name = path.rpartition(b"/")
        if name.startswith(_MARK):
            yield from self._parents(parent)
            yield self._marker(path, parent, name)
        elif member.kind in ("char", "block", "fifo"):
            self._no_device(member, path)
            self.skipped += 1
        else:
            yield from self._parents(parent)
            yield self._entry(member, path)

    def _parents(self, parent: bytes) -> Iterator[Entry]:
        """Directories that the layer uses without naming them, each before what is in it."""
        unnamed: list[bytes] = []
        while parent and parent not in self._dirs:
            if hash(parent) in self._others:
                raise Malformed(f"a name below something that is no directory, {parent!r}")
            unnamed.append(parent)
            parent = parent.rpartition(b"/")[0]
        for path in reversed(unnamed):
            self.leans_on_lower = True
            lower = self.parent_mode(path)
            mode = _DEFAULT_DIR_MODE if lower is None else lower
            self._dirs[path] = mode
            yield Entry(id=0, path=path, kind="dir", mode=mode, uid=0, gid=0)

    def _marker(self, path: bytes, parent: bytes, name: bytes) -> Entry:
        if name == _OPAQUE:
            return Entry(id=0, path=parent, kind="dir", mode=self._dirs.get(parent, _DEFAULT_DIR_MODE), opaque=True)
        hidden = name[len(_MARK) :]
        if hidden in (b"", b".", b".."):
            raise Malformed(f"a marker of removal that names nothing: {path!r}")
        return Entry(id=0, path=parent + b"/" + hidden if parent else hidden, kind="whiteout")

    def _no_device(self, member: Member, path: bytes) -> None:
        if member.kind != "fifo" and not path.startswith(b"dev/"):
            raise Malformed(f"it holds a device file, {path!r}")

    def _entry(self, member: Member, path: bytes) -> Entry:
        if member.kind == "dir":
            self._dirs[path] = member.mode
            self._others.discard(hash(path))
            return _owned(member, Entry(id=0, path=path, kind="dir", mode=member.mode))
        self._dirs.pop(path, None)
        self._others.add(hash(path))
        if member.kind == "hard":
            return Entry(id=0, path=path, kind="hard", target=clean_path(member.target))
        if member.kind == "link":
            if not member.target or b"\0" in member.target:
                raise Malformed(f"a link that points nowhere: {path!r}")
            return _owned(member, Entry(id=0, path=path, kind="link", target=member.target))
        return _owned(member, Entry(id=0, path=path, kind="file", mode=member.mode, size=member.size))


def _owned(member: Member, entry: Entry) -> Entry:
    if not (member.uid < 2**32 - 1 and member.gid < 2**32 - 1):
        raise Malformed(f"{entry.path!r} belongs to user {member.uid}, group {member.gid}, which no system has")
    return Entry(
        id=0,
        path=entry.path,
        kind=entry.kind,
        mode=entry.mode,
        size=entry.size,
        target=entry.target,
        mtime_ns=max(member.mtime_ns, 0),  # the wire knows no time before 1970
        uid=member.uid,
        gid=member.gid,
    )


def clean_path(raw: bytes) -> bytes:
    """A member's path relative to the root, without `.` and doubled slashes; empty for the root itself.

    Raises:
        Malformed: absolute, with `..`, with a NUL byte, or longer than a system can have.
    """
    if raw.startswith(b"/"):
        raise Malformed(f"an absolute name, {raw[:200]!r}")
    parts = [part for part in raw.split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise Malformed(f"a name that leaves the image, {raw[:200]!r}")
    if b"\0" in raw or len(raw) > MAX_PATH_BYTES or any(len(part) > _MAX_NAME_BYTES for part in parts):
        raise Malformed(f"a name that no file can have, {raw[:200]!r}")
    return b"/".join(parts)
