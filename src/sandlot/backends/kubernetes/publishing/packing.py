"""Directories as compressed layers on disk, remembered by what the directory looked like, so that none is packed twice."""

from __future__ import annotations

import hashlib
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from sandlot.errors import ImageInvalid, WriteFailed
from sandlot.images.tarstream import Malformed
from sandlot.images.tarwriter import Owner, fingerprint, owner_of_user, write_tar

FORMAT: Final = 1
"""Raised when the same directory would be packed differently."""

_LEVEL: Final = 1  # task layers are sent once over a fast network: time counts, not the last tenth of their size


class Layer(msgspec.Struct, frozen=True):
    """A packed layer: what a manifest and a config say of it."""

    digest: str
    size: int
    diff_id: str


@dataclass(frozen=True, slots=True)
class Packed:
    """A layer and, unless only its description was wanted, the file it lies in."""

    layer: Layer
    file: Path


class Packer:
    """Packs directories, with what is known kept below a folder of the cache. All methods block: call them in threads."""

    def __init__(self, folder: Path, owner: Owner | None = None) -> None:
        self._folder = folder
        self._owner = owner or owner_of_user(os.geteuid(), os.getegid(), ranges=_subordinate_ranges())

    def known(self, directory: Path) -> Layer | None:
        """The layer of a directory that has been packed before and looks the same since."""
        return self.recalled(self._state(directory))

    def recalled(self, state: str) -> Layer | None:
        """The layer that was remembered under these hex digits."""
        try:
            return msgspec.json.decode(self._note(state).read_bytes(), type=Layer)
        except (OSError, msgspec.MsgspecError):
            return None

    def remember(self, state: str, layer: Layer) -> None:
        """Keep what is known of a layer, whole or not at all, whoever else does the same. Raises WriteFailed."""
        self._make_folder()
        try:
            with tempfile.TemporaryDirectory(dir=self._folder, prefix=".note-") as own:
                part = Path(own) / "part"
                part.write_bytes(msgspec.json.encode(layer))
                part.rename(self._note(state))
        except OSError as error:
            raise WriteFailed.from_os(error, self._folder) from error

    @contextmanager
    def pack(self, directory: Path) -> Iterator[Packed]:
        """The packed directory, in a file that is gone after the block.

        Raises:
            ImageInvalid: it changed while it was read, or holds what no image can (the caller's fault).
            WriteFailed: no room for it below the cache.
        """
        state = self._state(directory)
        with _reading(directory):
            self._make_folder()
            with tempfile.NamedTemporaryFile(dir=self._folder, prefix=".layer-") as file:
                out = _Compressor(file)  # type: ignore[arg-type] # a NamedTemporaryFile is a file
                write_tar(directory, out, self._owner)  # type: ignore[arg-type] # tarfile only writes to it
                layer = out.finish()
                if self._state(directory) != state:
                    raise ImageInvalid(f"{directory} changed while it was read", hint="publish it when nothing writes to it")
                yield Packed(layer, Path(file.name))
                self.remember(state, layer)

    def _note(self, state: str) -> Path:
        return self._folder / f"{state}.json"

    def _make_folder(self) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise WriteFailed.from_os(error, self._folder) from error

    def _state(self, directory: Path) -> str:
        with _reading(directory):
            digest = hashlib.sha256(f"{FORMAT} {directory} {os.geteuid()}\n".encode())
            for piece in fingerprint(directory):
                digest.update(piece)
        return digest.hexdigest()


@contextmanager
def _reading(directory: Path) -> Iterator[None]:
    try:
        yield
    except Malformed as error:
        raise ImageInvalid(f"directory {str(directory)!r} cannot become a layer: {error}") from error
    except OSError as error:
        if isinstance(error, WriteFailed):
            raise
        where = error.filename or directory
        raise ImageInvalid(f"directory {str(directory)!r} cannot be packed: {where}: {error.strerror or error}") from error


class _Compressor:
    """gzip into a file, with both digests of a layer taken on the way. No name and no time go into the header."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._gzip = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)
        self._plain, self._packed = hashlib.sha256(), hashlib.sha256()
        self._size = 0

    def write(self, data: bytes) -> int:
        self._plain.update(data)
        self._put(self._gzip.compress(data))
        return len(data)

    def finish(self) -> Layer:
        self._put(self._gzip.flush())
        self._file.flush()
        return Layer(f"sha256:{self._packed.hexdigest()}", self._size, f"sha256:{self._plain.hexdigest()}")

    def _put(self, data: bytes) -> None:
        self._packed.update(data)
        self._size += len(data)
        self._file.write(data)


def _subordinate_ranges() -> tuple[tuple[int, int], ...]:
    """This user's ranges in /etc/subuid (subgid ranges are the same on all common systems)."""
    try:
        lines = Path("/etc/subuid").read_text().splitlines()
    except OSError:
        return ()
    names = {str(os.geteuid()), os.environ.get("USER", "")}
    fields = [line.split(":") for line in lines]
    return tuple((int(one[1]), int(one[2])) for one in fields if len(one) == 3 and one[0] in names and one[0])
