"""The bytes of an image: from a layout folder or a tar of one, verified while they are read, never more than asked."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from sandlot.backends.local.images.oci import MAX_DOCUMENT_BYTES, Descriptor, checked_digest
from sandlot.backends.local.images.tarstream import Data, Malformed, Member, read_tar
from sandlot.errors import Unsupported

_READ_BYTES: Final = 262_144
_MAX_ARCHIVE_MEMBERS: Final = 100_000
_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"


class Blobs(Protocol):
    """Where an image's blobs lie."""

    def open(self, name: str) -> BinaryIO:
        """A file of the layout by its path in it. Raises `Malformed` when it is missing."""


class Folder:
    """An OCI layout as a directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def open(self, name: str) -> BinaryIO:
        try:
            return open(self._path / name, "rb")
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise Malformed(f"{name} is missing") from error


class Archive:
    """An OCI layout as an uncompressed tar file: one pass finds where each member lies, reading only headers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._members = dict(_members(path))

    def open(self, name: str) -> BinaryIO:
        place = self._members.get(name)
        if place is None:
            raise Malformed(f"{name} is missing from the archive")
        return io.BufferedReader(_Slice(self._path, *place), _READ_BYTES)


def _members(path: Path) -> Iterator[tuple[str, tuple[int, int]]]:
    """(name, (offset, size)) of every file in the archive, skipping over their data."""
    with open(path, "rb") as file:
        skipper = _Skipper(file)
        for item in read_tar(skipper.read):
            if isinstance(item, Data):
                continue
            raise NotImplementedError
    yield from ()
