"""The secrets of leased sandboxes on disk, so that another process of the same user can link to them.

    $XDG_STATE_HOME/sandlot/kubernetes/<cluster>/<sandbox>     0600, in directories of this user alone

Who has a sandbox's file open is its provider: the file is locked, so that no two processes use one sandbox. The lock ends
with the process, the file with the sandbox.
"""

from __future__ import annotations

import fcntl
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from sandlot.backends.kubernetes.links.registrar import Secrets
from sandlot.errors import BadRequest, Closed, SandboxGone, Unsupported, WriteFailed

_MAX_FILE_BYTES: Final = 65_536
_FILE_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")

_secrets = msgspec.json.Decoder(Secrets)


def state_dir(cluster: str, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the files of one cluster's sandboxes are. `cluster`: any text that tells clusters apart, such as a URL."""
    base = environ.get("XDG_STATE_HOME")
    top = Path(base) if base and Path(base).is_absolute() else Path.home() / ".local" / "state"
    return top / "sandlot" / "kubernetes" / re.sub(r"[^A-Za-z0-9._-]+", "_", cluster).strip("._")[:200]


class Keepsake:
    """One sandbox's file, held by this process. Made by `create` or `take`."""

    def __init__(self, path: Path, number: int) -> None:
        self._path = path
        self._number: int | None = number

    def __repr__(self) -> str:
        return f"<Keepsake {self._path.name}>"

    @classmethod
    def create(cls, directory: Path, kept: Secrets) -> Keepsake:
        """A file for a sandbox that is about to be made.

        Raises:
            Unsupported: the directory is not this user's alone.
            WriteFailed: it cannot be written, or there is one of that name.
        """
        path = directory / _checked(kept.name)
        _make_private(directory)
        try:
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise WriteFailed.from_os(error, path) from error
        keepsake = cls(path, number)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            keepsake.write(kept)
        except BaseException:
            keepsake.remove()
            raise
        return keepsake

    @classmethod
    def take(cls, directory: Path, name: str) -> tuple[Keepsake, Secrets]:
        """The file of a sandbox that another process has left.

        Raises:
            SandboxGone: there is none; who made the sandbox was another user, another machine, or has deleted it.
            Closed: another process uses the sandbox.
            Unsupported: the file is not this user's alone, or of no use.
        """
        path = directory / _checked(name)
        try:
            number = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise SandboxGone(f"nothing is known here of a leased sandbox named {name!r}") from None
        except OSError as error:
            raise Unsupported(f"{path} cannot be read: {error.strerror}") from error
        keepsake = cls(path, number)
        try:
            keepsake._check_owner()
            keepsake._lock(name)
            return keepsake, keepsake._read()
        except BaseException:
            keepsake.close()
            raise

    def write(self, kept: Secrets) -> None:
        """Replace what is in it: after the enrolment secret was burned.

        Raises:
            WriteFailed: the disk is full, for instance.
            Closed: the file was closed or removed.
        """
        if self._number is None:
            raise Closed(f"the file of {kept.name} was closed")
        data = msgspec.json.encode(kept) + b"\n"
        try:
            # The lock is on this very file, so it is not exchanged for another: one write of one page is what a killed process
            # leaves whole or not at all, and a reader stops at the first line's end.
            if os.pwrite(self._number, data, 0) != len(data):
                raise OSError(5, "short write")
            os.ftruncate(self._number, len(data))
            os.fdatasync(self._number)
        except OSError as error:
            raise WriteFailed.from_os(error, self._path) from error

    def remove(self) -> None:
        """The sandbox is gone. Idempotent."""
        if self._number is not None:
            self._path.unlink(missing_ok=True)
            self.close()

    def close(self) -> None:
        """Leave the sandbox to the next process. Idempotent."""
        number, self._number = self._number, None
        if number is not None:
            os.close(number)

    # --- inside ----------------------------------------------------------------------------------------------------------
    def _lock(self, name: str) -> None:
        assert self._number is not None
        try:
            fcntl.flock(self._number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Closed(f"another process uses the sandbox {name}", hint="end that one first") from None
        if os.fstat(self._number).st_nlink == 0:
            raise SandboxGone(f"{name} was deleted by another process")

    def _check_owner(self) -> None:
        assert self._number is not None
        found = os.fstat(self._number)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise Unsupported(
                f"{self._path} is not a file of this user alone", hint="others may have its secrets: delete the sandbox"
            )

    def _read(self) -> Secrets:
        assert self._number is not None
        text = os.pread(self._number, _MAX_FILE_BYTES, 0)
        try:
            return _secrets.decode(text.split(b"\n", 1)[0])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise Unsupported(f"{self._path} is not understood: {error}", hint="delete the sandbox") from None


def kept(directory: Path) -> list[str]:
    """Names of the sandboxes that have a file there."""
    try:
        return sorted(entry.name for entry in os.scandir(directory) if _FILE_NAME.fullmatch(entry.name))
    except FileNotFoundError:
        return []


def _checked(name: str) -> str:
    if not _FILE_NAME.fullmatch(name):
        raise BadRequest(f"{name!r} is no name of a sandbox")
    return name


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(directory)
    except OSError as error:
        raise WriteFailed.from_os(error, directory) from error
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise Unsupported(f"{directory} is not a directory of this user alone", hint="chmod 700, or set XDG_STATE_HOME")
