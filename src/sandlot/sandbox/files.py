"""The calls of a sandbox that concern its files."""

from __future__ import annotations

import asyncio
import errno
import os

from sandlot.connection import Connection
from sandlot.errors import BadRequest, SandboxFileError, SandboxFileNotFound, SandboxNotADirectory
from sandlot.limits import MAX_CHUNK_BYTES, MAX_LISTED, MAX_READ_BYTES, REQUEST_PATIENCE_S
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.sandbox import transfers
from sandlot.sandbox.commands import Path, encode_path
from sandlot.sandbox.diffs import Diff, DiffBuilder
from sandlot.sandbox.recording import Recorder, Recording
from sandlot.sandbox.trees import Piece, TreeReader, TreeWriter, check_source
from sandlot.sandbox.values import FileInfo, TransferReport, file_info, listed, transfer_report
from sandlot.spec import parse_size

_DOWNLOAD_BYTES = "16GiB"
_DIFF_BYTES = "1GiB"
Local = str | os.PathLike[str]


class Files:
    """File calls. A path is absolute, or relative to the sandbox's working directory; links in it cannot leave the sandbox.

    `user` acts with that user's rights (None: the sandbox's user). All may raise `SandboxFileError`, which is also the
    `OSError` that a local call would raise (`FileNotFoundError`, `IsADirectoryError`, `PermissionError`, ...), and
    `Infrastructure`.
    """

    def __init__(self, connection: Connection, recorder: Recorder | None) -> None:
        self._connection = connection
        self._recorder = recorder

    def _ready(self) -> Connection:
        """The connection, when calls are still welcome."""
        return self._connection

    # --- single files -----------------------------------------------------------------------------------------------------
    async def read(self, path: Path, *, offset: int = 0, limit: int | None = None, user: str | None = None) -> bytes:
        """The bytes of a file from `offset`, at most `limit` of them (None: all, up to 256 MiB).

        Raises:
            SandboxFileError: with EFBIG when `limit` is None and there are more than 256 MiB; use `download`. Not retriable.
            FileNotFoundError, IsADirectoryError, PermissionError: as local.
        """
        if offset < 0 or (limit is not None and limit < 0):
            raise BadRequest(f"offset and limit must not be negative, got {offset} and {limit}")
        connection, name = self._ready(), encode_path(path)
        bound = MAX_READ_BYTES + 1 if limit is None else limit
        with Recording(self._recorder, "read", name) as recording:
            request = r.Read(id=connection.next_id(), path=name, offset=offset, limit=bound, user=user)
            sink = connection.begin(request, connection.contents(), patience_s=REQUEST_PATIENCE_S)
            await connection.finish(sink)
            data = sink.parts[0] if len(sink.parts) == 1 else b"".join(sink.parts)
            if limit is None and len(data) > MAX_READ_BYTES:
                text = f"more than {MAX_READ_BYTES} bytes; use download(), or read it in parts by offset and limit"
                raise SandboxFileError(text, path=os.fsdecode(name), number=errno.EFBIG)
            recording.data("data", data)
        return data

    async def read_text(self, path: Path, *, encoding: str = "utf-8", errors: str = "replace", user: str | None = None) -> str:
        """The text of a file of at most 256 MiB, bad sequences replaced. Raises as `read`."""
        return (await self.read(path, user=user)).decode(encoding, errors)

    async def write(
        self, path: Path, data: bytes | str, *, mode: int | None = None, parents: bool = True, user: str | None = None
    ) -> None:
        """Make the file's whole content `data` (text as UTF-8), by a temporary file and a rename: the old file or the new one.

        `mode`: permission bits; None keeps those of the old file, else 0644. `parents` makes missing directories.

        Raises:
            FileNotFoundError: a parent is missing and `parents` is false.
            IsADirectoryError, PermissionError: as local. SandboxNoSpace: the sandbox's disk is full; the old file is intact.
        """
        connection, name = self._ready(), encode_path(path)
        content = data.encode("utf-8", "surrogateescape") if isinstance(data, str) else bytes(data)
        with Recording(self._recorder, "write", name) as recording:
            recording.data("data", content)
            whole = len(content) <= MAX_CHUNK_BYTES
            request = r.Write(
                id=connection.next_id(),
                path=name,
                mode=mode,
                parents=parents,
                d=content if whole else b"",
                eof=whole,
                user=user,
            )
            if whole:
                await connection.ask(request, a.WriteOk)
            else:
                await transfers.send(connection, request, lambda: iter([Piece(None, content)]), a.WriteOk)

    async def stat(self, path: Path, *, follow: bool = True, user: str | None = None) -> FileInfo:
        """What is at a path; `follow=False` looks at a link itself.

        Raises:
            FileNotFoundError, NotADirectoryError, PermissionError: as local.
        """
        connection, name = self._ready(), encode_path(path)
        answer = await connection.ask(r.Stat(id=connection.next_id(), path=name, follow=follow, user=user), a.StatOk)
        return file_info(name, answer)

    async def exists(self, path: Path, *, user: str | None = None) -> bool:
        """Whether something is at the path, links followed. Raises `PermissionError` where that cannot be seen."""
        try:
            await self.stat(path, user=user)
        except (SandboxFileNotFound, SandboxNotADirectory):
            return False
        return True

    async def list(
        self, path: Path = ".", *, recursive: bool = False, limit: int = MAX_LISTED, user: str | None = None
    ) -> list[FileInfo]:
        """The entries of a directory, sorted by path, which is relative to it. Links are not followed.

        Raises:
            SandboxFileError: with EOVERFLOW when there are more than `limit` (default 100,000).
            FileNotFoundError, NotADirectoryError, PermissionError: as local.
        """
        if limit < 1:
            raise BadRequest(f"limit must be at least 1, got {limit}")
        connection, name = self._ready(), encode_path(path)
        request = r.ListFiles(id=connection.next_id(), path=name, recursive=recursive, limit=limit, user=user)
        sink = connection.begin(request, connection.pages(), patience_s=REQUEST_PATIENCE_S)
        answer: a.ListOk = await connection.finish(sink)
        if answer.truncated:
            raise SandboxFileError(f"more than {limit} entries", path=os.fsdecode(name), number=errno.EOVERFLOW)
        return [listed(entry) for entry in sorted(sink.entries, key=lambda entry: entry.path)]

    async def mkdir(
        self, path: Path, *, mode: int | None = None, parents: bool = True, exist_ok: bool = True, user: str | None = None
    ) -> None:
        """Make a directory (mode None: 0755) and, with `parents`, those above it that are missing.

        Raises:
            FileExistsError: something is there that is no directory, or `exist_ok` is false.
            FileNotFoundError: its parent is missing and `parents` is false.
            TransportLost: the link broke and `exist_ok` is false, so that asking again could not tell who made it.
        """
        connection, name = self._ready(), encode_path(path)
        with Recording(self._recorder, "mkdir", name):
            request = r.Mkdir(id=connection.next_id(), path=name, mode=mode, parents=parents, exist_ok=exist_ok, user=user)
            await connection.ask(request, a.Ok)

    async def remove(self, path: Path, *, recursive: bool = False, missing_ok: bool = False, user: str | None = None) -> None:
        """Remove a file, a link (never what it points to) or a directory, which must be empty unless `recursive`.

        Raises:
            FileNotFoundError: nothing is there and `missing_ok` is false.
            SandboxFileError: with ENOTEMPTY for a directory that is not empty.
            TransportLost: the link broke and `missing_ok` is false, so that asking again could not tell who removed it.
        """
        connection, name = self._ready(), encode_path(path)
        with Recording(self._recorder, "remove", name):
            request = r.Remove(id=connection.next_id(), path=name, recursive=recursive, missing_ok=missing_ok, user=user)
            await connection.ask(request, a.Ok)

    # --- trees --------------------------------------------------------------------------------------------------------------
    async def upload(self, source: Local, target: Path, *, user: str | None = None) -> TransferReport:
        """Copy a file or directory of this machine to `target` in the sandbox, whose parents are made.

        Modes, modification times, links (as links), hard links, holes and empty directories are kept; everything belongs to
        the acting user. A directory's existing other content stays, files are replaced whole. Sockets, fifos and devices are
        skipped and named. Memory is bounded, whatever the size.

        Raises:
            OSError: something on this machine cannot be read; what was sent before is in place.
            SandboxFileError: the sandbox refuses, such as `SandboxNoSpace`.
        """
        connection, name = self._ready(), encode_path(target)
        await asyncio.to_thread(check_source, source)
        reader = TreeReader(source)
        with Recording(self._recorder, "upload", name) as recording:
            request = r.Upload(id=connection.next_id(), path=name, user=user)
            answer = await transfers.send(connection, request, reader.items, a.TransferOk)
            recording.size("data", answer.data_bytes)
        report = transfer_report(answer)
        return TransferReport(report.files, report.dirs, report.links, report.data_bytes, (*report.skipped, *reader.skipped))

    async def download(
        self, source: Path, target: Local, *, user: str | None = None, max_bytes: int | str = _DOWNLOAD_BYTES
    ) -> TransferReport:
        """Copy a file or directory of the sandbox to `target` on this machine, whose parents are made.

        Kept as by `upload`, but files lose setuid and setgid bits and everything belongs to this process. Nothing outside of
        `target` is touched and no link inside it is followed, whatever the sandbox sends. At most `max_bytes` of data come
        (16 GiB; a tree with more raises EFBIG). After an error, what is complete stays.

        Raises:
            OSError: this machine refuses, such as `PermissionError` or a full disk.
            SandboxFileError: the sandbox refuses.
            ProtocolViolation: an entry tried to leave `target`.
        """
        connection, name = self._ready(), encode_path(source)
        writer = TreeWriter(target, max_bytes=parse_size(max_bytes, "max_bytes"))
        with Recording(self._recorder, "download", name) as recording:
            request = r.Download(id=connection.next_id(), path=name, user=user)
            answer = await transfers.receive(connection, request, writer, a.TransferOk)
            recording.size("data", answer.data_bytes)
        return transfer_report(answer)

    async def changes(self, path: Path = "/", *, max_bytes: int | str = _DIFF_BYTES) -> Diff:
        """What below `path` differs from the image: new, changed and removed things, as a value to look at or `apply`.

        At most `max_bytes` of data (1 GiB; more raises EFBIG), on this machine's disk beyond 4 MiB.

        Raises:
            Unsupported: this sandbox cannot tell exactly what changed.
            SandboxFileError: the sandbox refuses.
        """
        connection, name = self._ready(), encode_path(path)
        builder = DiffBuilder(max_bytes=parse_size(max_bytes, "max_bytes"))
        with Recording(self._recorder, "changes", name) as recording:
            request = r.Changes(id=connection.next_id(), path=name)
            answer = await transfers.receive(connection, request, builder, a.TransferOk)
            recording.size("data", answer.data_bytes)
        return builder.diff()

    async def apply(self, diff: Diff, path: Path = "/", *, user: str | None = None) -> TransferReport:
        """Make the changes of a diff below `path`, which should be the path it was taken from, on the same image.

        Owners are kept where the acting user may give them. Links are replaced, never written through.

        Raises:
            SandboxFileError: the sandbox refuses, such as `SandboxNoSpace`.
        """
        connection, name = self._ready(), encode_path(path)
        with Recording(self._recorder, "apply", name) as recording:
            request = r.Upload(id=connection.next_id(), path=name, user=user)
            answer = await transfers.send(connection, request, diff.items, a.TransferOk)
            recording.size("data", answer.data_bytes)
        return transfer_report(answer)
