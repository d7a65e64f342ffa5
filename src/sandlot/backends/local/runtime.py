"""The directories that all hosts of one user share, and which hosts in them live."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sandlot.errors import Unsupported


def runtime_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where hosts keep their sockets and states: `SANDLOT_RUNTIME_DIR`, else `/run/sandlot` for root, else below
    `XDG_RUNTIME_DIR` or `/tmp`.

    Raises:
        Unsupported: somebody else made that directory, or others may write to it.
    """
    if named := environ.get("SANDLOT_RUNTIME_DIR"):
        return Path(named).absolute()
    uid = os.geteuid()
    if uid == 0:
        path = Path("/run/sandlot")
    elif base := environ.get("XDG_RUNTIME_DIR"):
        path = Path(base) / "sandlot"
    else:
        path = Path(f"/tmp/sandlot-{uid}")
    check_private(path)
    return path


def check_private(path: Path) -> None:
    """A directory that exists must be this user's and closed to others: its name can be guessed.

    Raises:
        Unsupported: it is a link, belongs to somebody else, or is open to others.
    """
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise Unsupported(f"{path} is not a directory of this user alone", hint=f"remove it, or chmod 700 {path}")


def cache_dir(environ: Mapping[str, str] = os.environ) -> Path:
    """Where unpacked image layers are kept: `SANDLOT_CACHE`, else below `XDG_CACHE_HOME`, else `~/.cache/sandlot`."""
    if named := environ.get("SANDLOT_CACHE"):
        return Path(named).absolute()
    base = environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "sandlot"


def prepare_disk(cache: Path) -> Path:
    """The directory below the cache in which hosts make uppers on disk: on the same file system as layers, not in memory."""
    cache.parent.mkdir(parents=True, exist_ok=True)
    make_private(cache)
    path = cache / "disk"
    make_private(path)
    return path


def make_private(path: Path) -> None:
    """Make a directory for its owner alone; what root makes in another user's directory is that user's."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        return
    above = path.parent.stat()
    if os.geteuid() == 0 and above.st_uid != 0 and not above.st_mode & stat.S_ISVTX:
        os.chown(path, above.st_uid, above.st_gid)


@dataclass(frozen=True, slots=True)
class HostDir:
    """One host's directory."""

    path: Path
    alive: bool
    """Its host or its warden holds the lock on `state`."""

    @property
    def id(self) -> str:
        return self.path.name

    @property
    def socket(self) -> Path:
        return self.path / "socket"


def hosts(directory: Path) -> list[HostDir]:
    """Every host that lives or has left something behind, by id."""
    found = []
    try:
        paths = sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    for path in paths:
        alive = _is_locked(path / "state")
        if alive is not None:
            found.append(HostDir(path, alive))
    return found


def _is_locked(state: Path) -> bool | None:
    """Whether somebody holds the lock; None when there is no such file."""
    try:
        number = os.open(state, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(number, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)  # and with it the lock
    return False
