"""Unpacked layers on disk: found by digest, made by one process at a time, visible only when they are whole.

    <cache>/<id mode>/layers/<digest>     a layer that says everything about itself
                      stacks/<digest>     a layer that took modes of its parents from the layers below it, by chain id
                      partial/<digest>    being unpacked, by whoever holds the lock
                      locks/<digest>      flock-ed while that layer is being unpacked

Id modes are apart because owners on disk differ between them.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandlot.backends.local.runtime import make_private

_LOCK_PAUSE_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class LayerKey:
    """One layer of a stack: its own digest, and that of the stack up to it (OCI image-spec, "Layer ChainID")."""

    diff_id: str
    chain_id: str


def keys(diff_ids: Sequence[str]) -> list[LayerKey]:
    """The keys of a stack's layers, lowest first."""
    found: list[LayerKey] = []
    for diff_id in diff_ids:
        below = found[-1].chain_id if found else None
        chain = diff_id if below is None else "sha256:" + hashlib.sha256(f"{below} {diff_id}".encode()).hexdigest()
        found.append(LayerKey(diff_id, chain))
    return found


class LayerCache:
    """See the module."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def prepare(self) -> None:
        """Make the directories. Only the owner may look: layers hold what images hold, with all their modes."""
        self._root.parent.mkdir(parents=True, exist_ok=True)
        make_private(self._root)
        self._root.chmod(0o700)
        for name in ("layers", "stacks", "partial", "locks"):
            make_private(self._root / name)

    def find(self, key: LayerKey) -> Path | None:
        """The directory of a whole layer."""
        for path in (self._own(key), self._stacked(key)):
            if path.is_dir():
                return path
        return None

    def partial(self, key: LayerKey) -> Path:
        """An existing directory to unpack into; it may hold what somebody who was killed left there."""
        path = self._root / "partial" / _name(key.diff_id)
        make_private(path)
        path.chmod(0o755)  # it becomes a root directory, and not every layer says what mode that has
        return path

    def publish(self, key: LayerKey, *, leans_on_lower: bool) -> Path:
        """Make the partial directory a whole layer, in one step."""
        target = self._stacked(key) if leans_on_lower else self._own(key)
        (self._root / "partial" / _name(key.diff_id)).rename(target)
        return target

    @asynccontextmanager
    async def locked(self, key: LayerKey) -> AsyncIterator[bool]:
        """Hold the right to unpack this layer, among all processes. False: somebody else has made it meanwhile.

        flock knows no way to wait that could be cancelled, so it is tried again and again; this is only reached while
        another create or another process is unpacking the same layer, which takes seconds.
        """
        number = os.open(self._root / "locks" / _name(key.diff_id), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            while not _try_lock(number):
                await asyncio.sleep(_LOCK_PAUSE_S)
                if self.find(key) is not None:
                    yield False
                    return
            yield self.find(key) is None
        finally:
            os.close(number)

    def abandoned(self) -> list[tuple[str, Path]]:
        """Partial directories by digest, being worked on or not."""
        directory = self._root / "partial"
        return [(path.name, path) for path in sorted(directory.iterdir())] if directory.is_dir() else []

    @contextmanager
    def claimed(self, name: str) -> Iterator[bool]:
        """Hold the right to work on a partial directory. False: somebody else does."""
        number = os.open(self._root / "locks" / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield _try_lock(number)
        finally:
            os.close(number)

    def _own(self, key: LayerKey) -> Path:
        return self._root / "layers" / _name(key.diff_id)

    def _stacked(self, key: LayerKey) -> Path:
        return self._root / "stacks" / _name(key.chain_id)


def _name(digest: str) -> str:
    return digest.replace(":", "-")


def _try_lock(number: int) -> bool:
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def directory_mode(layers: Sequence[Path], path: bytes) -> int | None:
    """The mode of a directory in the topmost of these layers that has it; links on the way are not followed."""
    for layer in reversed(layers):
        mode = _mode_in(layer, path)
        if mode is not None:
            return mode
    return None


def _mode_in(layer: Path, path: bytes) -> int | None:
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    number = os.open(layer, flags)
    try:
        for part in path.split(b"/"):
            below = os.open(part, flags, dir_fd=number)
            os.close(number)
            number = below
        return stat.S_IMODE(os.fstat(number).st_mode)
    except OSError:
        return None  # not there, a link, or not ours to look into: the default is used
    finally:
        os.close(number)
