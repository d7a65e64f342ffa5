"""The bytes of an image: from a layout folder or a tar of one, verified while they are read, never more than asked."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from sandlot.errors import Unsupported
from sandlot.images.oci import MAX_DOCUMENT_BYTES, Descriptor, checked_digest
from sandlot.images.tarstream import Data, Malformed, Member, Read, padded, read_headers, read_tar

_READ_BYTES: Final = 262_144
_MAX_ARCHIVE_MEMBERS: Final = 100_000  # a layout has a handful of files and one blob a layer
_ZSTD_WINDOW_BYTES: Final = 2**27  # what decoders must offer (RFC 8878 recommends 8 MiB, `zstd --long` writes up to this)
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


class Blobs(Protocol):
    """Where an image's files lie."""

    def open(self, name: str) -> BinaryIO:
        """A file of the layout by its path in it. Raises `Malformed` when it is missing or no regular file."""


class Folder:
    """An OCI layout as a directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, name: str) -> BinaryIO:
        return _open_regular(self._path / name, name)


class Archive:
    """An OCI layout as a tar file that is not compressed: one pass finds where each member lies, reading only headers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _open_regular(path, path.name) as file:
            if file.read(2) == _GZIP:
                raise Malformed("the archive itself is compressed; decompress it first (gunzip)")
            file.seek(0)
            self._members = _index(file)

    def open(self, name: str) -> BinaryIO:
        place = self._members.get(name)
        if place is None:
            raise Malformed(f"{name} is missing from the archive")
        return io.BufferedReader(_Slice(_open_regular(self._path, name), *place), _READ_BYTES)


def _open_regular(path: Path, name: str) -> BinaryIO:
    """Opened without waiting: a fifo in the place of a blob must not hang the caller."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Malformed(f"{name} is missing") from error
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise Malformed(f"{name} is not a regular file")
    return open(number, "rb")


def _index(file: BinaryIO) -> dict[str, tuple[int, int]]:
    """(offset, size) of every file in the archive by its name."""
    members: dict[str, tuple[int, int]] = {}
    for header in read_headers(file.read):
        start = file.tell()
        if header.member.kind == "file":
            name = header.member.path.decode("utf-8", "surrogateescape").removeprefix("./")
            members[name] = (start, header.stored)
        if len(members) > _MAX_ARCHIVE_MEMBERS:
            raise Malformed(f"the archive has more than {_MAX_ARCHIVE_MEMBERS} members")
        file.seek(start + padded(header.stored))
    return members


class _Slice(io.RawIOBase):
    """Part of a file, as a file of its own."""

    def __init__(self, file: BinaryIO, start: int, size: int) -> None:
        self._file, self._at, self._end = file, start, start + size

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = os.pread(self._file.fileno(), min(len(buffer), self._end - self._at), self._at)
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()


class _Verified:
    """A stream whose bytes are counted and hashed as they pass; `finish` holds them against what was promised."""

    def __init__(self, read: Read, digest: str, *, limit: int, what: str) -> None:
        self._read, self._digest, self._limit, self._what = read, checked_digest(digest), limit, what
        self._hash = hashlib.new(digest.partition(":")[0])
        self._count = 0

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes, fewer only at the end."""
        data = self._read(size)
        while len(data) < size and (more := self._read(size - len(data))):
            data += more
        self._hash.update(data)
        self._count += len(data)
        if self._count > self._limit:
            raise Malformed(f"{self._what} has more than {self._limit} bytes")
        return data

    def finish(self) -> None:
        """Read what is left and compare. Raises `Malformed` when the digest is another."""
        while self.read(_READ_BYTES):
            pass
        found = f"{self._hash.name}:{self._hash.hexdigest()}"
        if found != self._digest:
            raise Malformed(f"{self._what} is damaged: its digest should be {self._digest} and is {found}")


def read_document(blobs: Blobs, descriptor: Descriptor) -> bytes:
    """A manifest, config or index, whole and verified.

    Raises:
        Malformed: missing, too large, or not what its digest says.
    """
    name = blob_name(descriptor.digest)
    with blobs.open(name) as file:
        checked = _Verified(file.read, descriptor.digest, limit=MAX_DOCUMENT_BYTES, what=name)
        raw = checked.read(MAX_DOCUMENT_BYTES)
        checked.finish()
    return raw


def read_file(blobs: Blobs, name: str) -> bytes:
    """One of the files of a layout that no digest covers (`oci-layout`, `index.json`), at most 4 MiB."""
    with blobs.open(name) as file:
        raw = file.read(MAX_DOCUMENT_BYTES + 1)
    if len(raw) > MAX_DOCUMENT_BYTES:
        raise Malformed(f"{name} has more than {MAX_DOCUMENT_BYTES} bytes")
    return raw


def read_layer(blobs: Blobs, layer: Descriptor, diff_id: str, *, limit_bytes: int) -> Iterator[Member | Data]:
    """The members of a layer. Whoever consumes this to its end has seen exactly the bytes that both digests promise.

    Raises:
        Malformed: damaged, cut short, or larger than `limit_bytes` once decompressed.
        Unsupported: zstd, and the `zstandard` package is not installed.
    """
    name = blob_name(layer.digest)
    with blobs.open(name) as file:
        packed_limit = layer.size if layer.size >= 0 else limit_bytes
        packed = _Verified(file.read, layer.digest, limit=packed_limit, what=f"layer {layer.digest}")
        plain = _Verified(_decompressed(packed.read), diff_id, limit=limit_bytes, what=f"layer {layer.digest}, decompressed,")
        yield from read_tar(plain.read)
        plain.finish()
        packed.finish()


def blob_name(digest: str) -> str:
    """Where a blob lies in a layout. Raises `Malformed` for what is no digest."""
    algorithm, _, value = checked_digest(digest).partition(":")
    return f"blobs/{algorithm}/{value}"


def _decompressed(read: Read) -> Read:
    """The plain bytes of a stream; how it is packed is told by its first bytes, since media types are often wrong."""
    head = read(4)
    rest = _Rest(head, read).read
    if head.startswith(_GZIP):
        return _Gunzip(rest).read
    if head == _ZSTD:
        return _unzstd(rest)
    return rest


class _Rest:
    """A stream with the bytes that were read ahead put back."""

    def __init__(self, head: bytes, read: Read) -> None:
        self._head, self._read = head, read

    def read(self, size: int) -> bytes:
        if self._head:
            data, self._head = self._head[:size], self._head[size:]
            return data
        return self._read(size)


class _Gunzip:
    """gzip members one after another; output is made only as it is asked for, so a bomb stays small."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._unzip = zlib.decompressobj(wbits=31)
        self._pending = b""

    def read(self, size: int) -> bytes:
        if size <= 0:
            return b""
        while True:
            if self._unzip.eof:
                self._pending = (self._unzip.unused_data or self._read(_READ_BYTES)).lstrip(b"\0")
                if not self._pending:
                    return b""
                self._unzip = zlib.decompressobj(wbits=31)
            data = self._pending or self._read(_READ_BYTES)
            if not data:
                raise Malformed("its gzip data ends too early")
            try:
                out = self._unzip.decompress(data, size)
            except zlib.error as error:
                raise Malformed(f"its gzip data is damaged: {error}") from error
            self._pending = self._unzip.unconsumed_tail
            if out:
                return out


class _Reader(io.RawIOBase):
    """A `Read` as the file object that the zstd library wants."""

    def __init__(self, read: Read) -> None:
        self._read = read

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = self._read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _unzstd(read: Read) -> Callable[[int], bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise Unsupported("a layer is compressed with zstd", hint="pip install 'sandlot[zstd]'") from error
    source = io.BufferedReader(_Reader(read), _READ_BYTES)
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    stream = decompressor.stream_reader(source, read_across_frames=True, closefd=False)

    def decompress(size: int) -> bytes:
        try:
            return bytes(stream.read(size))
        except zstandard.ZstdError as error:
            raise Malformed(f"its zstd data is damaged: {error}") from error

    return decompress
