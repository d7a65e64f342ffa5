"""What was tried in a cluster, kept on this machine for a day, so that `auto` need not find out again."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from sandlot.backends.kubernetes.preflight.facts import Tried
from sandlot.errors import WriteFailed

KEPT_S: Final = 86_400.0  # networks and nodes change; a day is what finding out anew is worth


class _Note(msgspec.Struct, frozen=True):
    at_s: float
    tried: tuple[Tried, ...]


class Memory:
    """Notes below a folder of the cache, one for each API server and namespace."""

    def __init__(self, folder: Path, clock: Callable[[], float] = time.time) -> None:
        self._folder, self._clock = folder, clock

    def recall(self, server: str, namespace: str) -> tuple[Tried, ...]:
        """What was tried there lately; nothing when it is long ago or the note cannot be read."""
        try:
            note = msgspec.json.decode(self._path(server, namespace).read_bytes(), type=_Note)
        except (OSError, msgspec.MsgspecError):
            return ()
        return note.tried if 0 <= self._clock() - note.at_s < KEPT_S else ()

    def keep(self, server: str, namespace: str, tried: tuple[Tried, ...]) -> None:
        """Raises WriteFailed when the cache cannot be written."""
        path = self._path(server, namespace)
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            part.write_bytes(msgspec.json.encode(_Note(self._clock(), tried)))
            part.rename(path)
        except OSError as error:
            raise WriteFailed.from_os(error, path) from error

    def _path(self, server: str, namespace: str) -> Path:
        name = hashlib.sha256(f"{server}\n{namespace}".encode()).hexdigest()[:32]
        return self._folder / f"{name}.json"
