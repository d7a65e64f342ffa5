"""A directory as the tar of an image layer: the same bytes for the same files, whoever packs them and when.

Members stand in the order of their names with numeric owners, times in whole seconds, and nothing of the machine they come
from. Marks of removal of an overlay file system become those of the OCI Image Layer Specification ("Whiteouts").
"""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from sandlot.images.tarstream import Malformed

MARK: Final = ".wh."
_OPAQUE: Final = ".wh..wh..opq"
_OVERLAYS: Final = ("trusted.overlay.", "user.overlay.")
_KEPT_XATTRS: Final = ("security.capability", "user.")
_BLOCK_BYTES: Final = 1_048_576

Owner = Callable[[int, int], tuple[int, int]]
"""From a file's uid and gid on this machine to those in the image."""


@dataclass(frozen=True, slots=True)
class Found:
    """One file of the directory."""

    name: str
    """Relative to the top, as the archive has it; `.` for the top itself."""
    path: str
    status: os.stat_result
    removed: bool = False
    """An overlay's mark that a lower layer's file of this name is no more."""


def owner_of_user(uid: int, gid: int, *, ranges: tuple[tuple[int, int], ...] = ()) -> Owner:
    """The rule for a client that is not root: its own files are root's in the image, ids of its subordinate ranges (start,
    count) count from 1 as user namespaces have it, others stay. For root every id stays."""

    def mapped(own: int, found: int) -> int:
        if own == 0:
            return found
        if found == own:
            return 0
        for start, count in ranges:
            if start <= found < start + count:
                return found - start + 1
        return found

    return lambda file_uid, file_gid: (mapped(uid, file_uid), mapped(gid, file_gid))


def walk(top: Path) -> Iterator[Found]:
    """Every file, a directory before what is in it, names in order. Other file systems mounted below are left out, sockets
    and device files too.

    Raises:
        Malformed: a name that would be a mark of removal in an image.
    """
    status = os.lstat(top)
    yield Found(".", str(top), status)
    yield from _walk(str(top), "", status.st_dev)


def _walk(folder: str, prefix: str, device: int) -> Iterator[Found]:
    with os.scandir(folder) as entries:
        names = sorted(entry.name for entry in entries)
    for base in names:
        if base.startswith(MARK):
            raise Malformed(f"{prefix + base!r} cannot be in an image: names that begin with {MARK} mark removed files there")
        path = f"{folder}/{base}"
        status = os.lstat(path)
        removed = _is_whiteout(path, status)
        if not removed and (stat.S_ISSOCK(status.st_mode) or stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)):
            continue
        yield Found(prefix + base, path, status, removed)
        if stat.S_ISDIR(status.st_mode) and status.st_dev == device:
            yield from _walk(path, f"{prefix}{base}/", device)


def _is_whiteout(path: str, status: os.stat_result) -> bool:
    """Both forms of the kernel's Documentation/filesystems/overlayfs.rst: device 0/0, or an empty file with an attribute."""
    if stat.S_ISCHR(status.st_mode):
        return status.st_rdev == 0
    return stat.S_ISREG(status.st_mode) and status.st_size == 0 and _overlay_mark(path, "whiteout") is not None


def _overlay_mark(path: str, name: str) -> bytes | None:
    for prefix in _OVERLAYS:
        try:
            return os.getxattr(path, prefix + name, follow_symlinks=False)
        except OSError:
            continue  # no such attribute, or a file system or user that has none of the kind
    return None


def write_tar(top: Path, out: BinaryIO, owner: Owner) -> None:
    """Write the directory as one uncompressed archive. Blocks.

    Raises:
        Malformed: a file changed its size while it was read, or cannot be in an image.
        OSError: it cannot be read.
    """
    links: dict[tuple[int, int], str] = {}
    with tarfile.open(
        fileobj=out, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape", bufsize=_BLOCK_BYTES
    ) as tar:
        for found in walk(top):
            _add(tar, found, owner, links)


def _add(tar: tarfile.TarFile, found: Found, owner: Owner, links: dict[tuple[int, int], str]) -> None:
    status = found.status
    if found.removed:
        folder, _, base = found.name.rpartition("/")
        tar.addfile(_marker(f"{folder}/{MARK}{base}" if folder else MARK + base))
        return
    info = _member(found, owner)
    key = (status.st_dev, status.st_ino)
    if not info.isdir() and status.st_nlink > 1:
        if key in links:
            info.type, info.linkname, info.size, info.pax_headers = tarfile.LNKTYPE, links[key], 0, {}
        links.setdefault(key, found.name)
    if info.isreg():
        with open(found.path, "rb") as file:
            try:
                tar.addfile(info, file)
            except OSError as error:
                if error.errno is None:  # tarfile's own word for a file that ended early
                    raise Malformed(f"{found.name!r} changed while it was read") from error
                raise
    else:
        tar.addfile(info)
    if info.isdir() and _overlay_mark(found.path, "opaque") == b"y":
        tar.addfile(_marker(_OPAQUE if found.name == "." else f"{found.name}/{_OPAQUE}"))


def _marker(name: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.mode = 0o644
    return info


def _member(found: Found, owner: Owner) -> tarfile.TarInfo:
    status = found.status
    info = tarfile.TarInfo(found.name)
    info.mode = stat.S_IMODE(status.st_mode)
    info.uid, info.gid = owner(status.st_uid, status.st_gid)
    info.mtime = int(status.st_mtime)
    if stat.S_ISDIR(status.st_mode):
        info.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(status.st_mode):
        info.type, info.linkname = tarfile.SYMTYPE, os.readlink(found.path)
    elif stat.S_ISFIFO(status.st_mode):
        info.type = tarfile.FIFOTYPE
    else:
        info.size = status.st_size
    if not info.issym():
        info.pax_headers = _attributes(found.path)
    return info


def _attributes(path: str) -> dict[str, str]:
    """Extended attributes that belong to the file and not to the overlay that it lies in, as pax records."""
    try:
        names = os.listxattr(path, follow_symlinks=False)
    except OSError:
        return {}  # a file system without any
    kept = {}
    for name in sorted(names):
        if name.startswith(_KEPT_XATTRS) and not name.startswith(_OVERLAYS):
            value = os.getxattr(path, name, follow_symlinks=False)
            kept[f"SCHILY.xattr.{name}"] = value.decode("utf-8", "surrogateescape")
    return kept


def fingerprint(top: Path) -> Iterator[bytes]:
    """Pieces that change when a file of the directory does: everything of it that costs no reading."""
    for found in walk(top):
        status = found.status
        told = (
            status.st_mode,
            status.st_uid,
            status.st_gid,
            status.st_size,
            status.st_mtime_ns,
            status.st_ctime_ns,
            status.st_ino,
        )
        yield f"{found.name}\0{told}\0{status.st_ino}\0{found.removed}\n".encode("utf-8", "surrogateescape")
