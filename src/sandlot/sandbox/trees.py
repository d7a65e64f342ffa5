"""Trees of files on this machine as a sequence of entries and data, in both directions. Sync; no wire, no asyncio.

What comes down was made by code that is not trusted: the writer opens every directory by descriptor without following links,
refuses names that could lead elsewhere, and puts each file beside its place before renaming it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from sandlot.errors import BadRequest, ProtocolViolation, SandboxFileError
from sandlot.limits import MAX_CHUNK_BYTES
from sandlot.protocol.calls import check_entry
from sandlot.protocol.requests import Entry


@dataclass(frozen=True, slots=True)
class Piece:
    """Data of the file whose entry came last."""

    at: int | None
    """Its position in the file; None: right after the piece before it."""
    data: bytes


Item = Entry | Piece
_DIR_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FLAGS: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


# --- up ------------------------------------------------------------------------------------------------------------------
class TreeReader:
    """Reads a file or directory. Links below it are links; it itself may be a link to what is meant."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self._root = os.path.realpath(os.fsencode(root))
        self.skipped: list[bytes] = []
        """Sockets, fifos and devices, which are left out."""

    def items(self) -> Iterator[Item]:
        """From the start; may be called again.

        Raises:
            OSError: something on this machine cannot be read.
        """
        self.skipped.clear()
        yield from self._visit(self._root, b"", {})

    def _visit(self, path: bytes, name: bytes, seen: dict[tuple[int, int], bytes]) -> Iterator[Item]:
        info = os.lstat(path)
        mode, mtime_ns = stat.S_IMODE(info.st_mode), max(info.st_mtime_ns, 0)
        if stat.S_ISDIR(info.st_mode):
            yield Entry(0, name, "dir", mode, mtime_ns)
            with os.scandir(path) as found:
                children = sorted(child.name for child in found)
            for child in children:
                yield from self._visit(os.path.join(path, child), name + b"/" + child if name else child, seen)
        elif info.st_nlink > 1 and (info.st_dev, info.st_ino) in seen:
            yield Entry(0, name, "hard", target=seen[info.st_dev, info.st_ino])
        elif stat.S_ISLNK(info.st_mode):
            yield Entry(0, name, "link", mtime_ns=mtime_ns, target=os.readlink(path))
        elif stat.S_ISREG(info.st_mode):
            seen[info.st_dev, info.st_ino] = name
            yield from self._file(path, name)
        else:
            self.skipped.append(name)

    def _file(self, path: bytes, name: bytes) -> Iterator[Item]:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            info = os.fstat(fd)
            yield Entry(0, name, "file", stat.S_IMODE(info.st_mode), max(info.st_mtime_ns, 0), info.st_size)
            for start, end in extents(fd, info.st_size):
                position = start
                while position < end:
                    data = os.pread(fd, min(end - position, MAX_CHUNK_BYTES), position)
                    if not data:
                        return  # it became shorter meanwhile: the rest stays a hole
                    yield Piece(position, data)
                    position += len(data)
        finally:
            os.close(fd)


def extents(fd: int, size: int) -> Iterator[tuple[int, int]]:
    """Where a file of `size` bytes has data, as its file system tells."""
    position = 0
    while position < size:
        try:
            start = os.lseek(fd, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # a hole up to the end
                return
            raise
        end = min(os.lseek(fd, start, os.SEEK_HOLE), size)
        if start < end:
            yield start, end
        position = max(end, start + 1)


# --- down ----------------------------------------------------------------------------------------------------------------
@dataclass(slots=True)
class _Open:
    """The file that is being written, beside its place."""

    fd: int
    parent: int
    name: bytes
    temporary: bytes
    entry: Entry
    position: int = 0


@dataclass(slots=True)
class _Later:
    """What can be set on a directory only after everything in it is written."""

    modes: list[tuple[bytes, int | None, int | None]] = field(default_factory=list)


class TreeWriter:
    """Writes entries below a target on this machine; never touches anything outside of it and follows no link inside it.

    Existing directories keep their other content, existing files are replaced. Files do not keep setuid and setgid bits.
    """

    def __init__(self, target: str | os.PathLike[str], *, max_bytes: int) -> None:
        self._target = os.path.abspath(os.fsencode(target))
        self._max_bytes = max_bytes
        self._bytes = 0
        self._root: int | None = None
        self._file: _Open | None = None
        self._later = _Later()
        self._files: set[bytes] = set()
        self._parent: tuple[bytes, int] | None = None

    def restart(self) -> None:
        """The same tree comes again from its beginning."""
        self.close()
        self._bytes = 0
        self._later = _Later()
        self._files = set()

    def entry(self, entry: Entry) -> None:
        """
        Raises:
            OSError: this machine's file system refuses.
            ProtocolViolation: the entry would lead outside of the target, or makes no sense.
        """
        check_entry(entry)
        self._finish_file()
        if entry.path == b"":
            self._make_root(entry)
            return
        parent, name = self._place(entry.path)
        if entry.kind == "dir":
            self._make_dir(parent, name)
            self._later.modes.append((entry.path, entry.mode, entry.mtime_ns))
        else:
            self._make(parent, name, entry)

    def data(self, at: int | None, data: bytes) -> None:
        """Raises as `entry`, and `SandboxFileError` (EFBIG) when the transfer is larger than `max_bytes`."""
        file = self._file
        if file is None:
            raise ProtocolViolation("data that belongs to no file")
        position = file.position if at is None else at
        if file.entry.size is not None and position + len(data) > file.entry.size:
            raise ProtocolViolation("data beyond the size of its file")
        self._bytes += len(data)
        if self._bytes > self._max_bytes:
            raise SandboxFileError(f"the tree has more than max_bytes={self._max_bytes} of data", number=errno.EFBIG)
        view = memoryview(data)
        while view:
            count = os.pwrite(file.fd, view, position)
            view, position = view[count:], position + count
        file.position = position

    def finish(self) -> None:
        """Everything has come: finish the last file, then modes and times of directories, children first."""
        self._finish_file()
        for path, mode, mtime_ns in reversed(self._later.modes):
            fd = self._walk(path)
            try:
                if mode is not None:
                    os.fchmod(fd, mode & 0o3777)
                if mtime_ns is not None:
                    os.utime(fd, ns=(mtime_ns, mtime_ns))
            finally:
                os.close(fd)
        self.close()

    def close(self) -> None:
        """Release what is open; a file that was not finished leaves nothing. Idempotent."""
        if self._file is not None:
            file, self._file = self._file, None
            os.close(file.fd)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file.temporary, dir_fd=file.parent)
            os.close(file.parent)
        if self._parent is not None:
            os.close(self._parent[1])
            self._parent = None
        if self._root is not None:
            os.close(self._root)
            self._root = None

    # --- places ---------------------------------------------------------------------------------------------------------
    def _make_root(self, entry: Entry) -> None:
        if self._root is not None:
            raise ProtocolViolation("a second root of the transfer")
        above, name = os.path.split(self._target)
        os.makedirs(above, exist_ok=True)
        if entry.kind == "dir":
            os.makedirs(self._target, exist_ok=True)
            self._root = os.open(self._target, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            self._later.modes.append((b"", entry.mode, entry.mtime_ns))
            return
        parent = os.open(above, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self._make(parent, name, entry)
        finally:
            os.close(parent)

    def _place(self, path: bytes) -> tuple[int, bytes]:
        """The descriptor of the directory that holds `path` (kept for the next entry beside it), and its name there."""
        above, _, name = path.rpartition(b"/")
        if self._parent is None or self._parent[0] != above:
            fd = self._walk(above)
            if self._parent is not None:
                os.close(self._parent[1])
            self._parent = (above, fd)
        return self._parent[1], name

    def _walk(self, path: bytes) -> int:
        """Open a directory below the root, step by step, through no link. The caller closes it."""
        if self._root is None:
            raise ProtocolViolation("an entry before the root of the transfer")
        fd = os.dup(self._root)
        for name in path.split(b"/") if path else ():
            try:
                below = os.open(name, _DIR_FLAGS, dir_fd=fd)
            finally:
                os.close(fd)
            fd = below
        return fd

    # --- things ---------------------------------------------------------------------------------------------------------
    def _make_dir(self, parent: int, name: bytes) -> None:
        try:
            os.mkdir(name, 0o700, dir_fd=parent)
        except FileExistsError:
            info = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(info.st_mode):
                os.unlink(name, dir_fd=parent)
                os.mkdir(name, 0o700, dir_fd=parent)
            elif info.st_mode & 0o700 != 0o700:
                os.chmod(name, 0o700, dir_fd=parent)

    def _make(self, parent: int, name: bytes, entry: Entry) -> None:
        temporary = b".sandlot-" + secrets.token_hex(8).encode()
        if entry.kind == "file":
            fd = os.open(temporary, _NEW_FLAGS, 0o600, dir_fd=parent)
            self._file = _Open(fd, os.dup(parent), name, temporary, entry)
            return
        if entry.kind == "link" and entry.target:
            os.symlink(entry.target, temporary, dir_fd=parent)
            if entry.mtime_ns is not None:
                os.utime(temporary, ns=(entry.mtime_ns, entry.mtime_ns), dir_fd=parent, follow_symlinks=False)
        elif entry.kind == "hard" and entry.target in self._files:
            self._link(entry.target, temporary, parent)
        else:
            raise ProtocolViolation(f"an entry of kind {entry.kind} in a download")
        _rename(temporary, name, parent)

    def _link(self, target: bytes, temporary: bytes, parent: int) -> None:
        above, _, name = target.rpartition(b"/")
        holder = self._walk(above)
        try:
            os.link(name, temporary, src_dir_fd=holder, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(holder)

    def _finish_file(self) -> None:
        file = self._file
        if file is None:
            return
        if file.entry.size is not None:
            os.ftruncate(file.fd, file.entry.size)
        if file.entry.mode is not None:
            os.fchmod(file.fd, file.entry.mode & 0o777)
        if file.entry.mtime_ns is not None:
            os.utime(file.fd, ns=(file.entry.mtime_ns, file.entry.mtime_ns))
        os.replace(file.temporary, file.name, src_dir_fd=file.parent, dst_dir_fd=file.parent)
        os.close(file.fd)
        os.close(file.parent)
        self._file = None
        self._files.add(file.entry.path)


def _rename(temporary: bytes, name: bytes, parent: int) -> None:
    try:
        os.replace(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except OSError:
        os.unlink(temporary, dir_fd=parent)
        raise


def check_source(source: str | os.PathLike[str]) -> None:
    """
    Raises:
        BadRequest: it is neither a file nor a directory.
    """
    mode = os.stat(source).st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise BadRequest(f"{os.fspath(source)!r} is neither a file nor a directory")
