"""A run's folder: what was asked, and every result as soon as it exists. Safe against kill -9, torn lines and a full disk.

    request.json    what was asked; the same call continues, another one is an error
    results.jsonl   one line a finished rollout, forced to the disk before the next thing happens
    events.jsonl    sandboxes, phases, and every exec and file call of every rollout (sandlot.events)
    report.*        made from the files above, at any time

A lock on the folder keeps two runs from writing to it at once. A little space is kept back, so that results which are
finished when the disk fills up can still be written.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec

from sandlot.errors import BadRequest, WriteFailed
from sandlot.rollout.results import RolloutResult, decode_result, encode_result

REQUEST: Final = "request.json"
RESULTS: Final = "results.jsonl"
EVENTS: Final = "events.jsonl"
LOCK: Final = ".lock"
RESERVE: Final = ".reserve"

RESERVE_BYTES: Final = 262_144
"""Kept back on the disk: a result is 1 to 4 KiB, so this holds those of any burst that finishes while the run is being
stopped."""


class RunStore:
    """One run's folder, opened for writing by one process."""

    def __init__(self, folder: str | os.PathLike[str], request: Mapping[str, Any]) -> None:
        """Make or continue the run in `folder`. `request` is what would change results: all of it must be equal to continue.

        Raises:
            BadRequest: another request was run there, or another process is running it now.
            WriteFailed: the folder cannot be written to.
        """
        self.folder = Path(folder)
        self.done: list[RolloutResult] = []
        """Results that were already there."""
        self._results = self._lock = -1
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self._take_lock()
            self._check_request(dict(request))
            self._results = os.open(self.folder / RESULTS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            self.done = self._recover()
            self._keep_back()
        except OSError as error:
            self.close()
            raise error if isinstance(error, WriteFailed) else WriteFailed.from_os(error, self.folder) from error
        except BadRequest:
            self.close()
            raise

    def write(self, result: RolloutResult) -> None:
        """Append one result and force it to the disk (about a millisecond; a rollout takes seconds).

        Raises:
            WriteFailed: the disk is full or gone. The result itself was still written when the space kept back was enough:
                `result in store.done` says so. All results before it are whole.
        """
        line = encode_result(result)
        try:
            self._append(line)
        except OSError as error:
            failure = WriteFailed.from_os(error, self.folder / RESULTS)
            if self._release_reserve():
                self._append_last(line, result, failure)
            raise failure from error
        self.done.append(result)

    def close(self) -> None:
        """Give the space kept back and the lock free. Idempotent."""
        if self._results >= 0:
            self._release_reserve()
            os.close(self._results)
        if self._lock >= 0:
            os.close(self._lock)
        self._results = self._lock = -1

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- opening -----------------------------------------------------------------------------------------------------
    def _take_lock(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BadRequest(
                f"another process is writing to {self.folder}", hint="wait for it, or choose another --out"
            ) from None

    def _check_request(self, request: dict[str, Any]) -> None:
        path = self.folder / REQUEST
        wanted = msgspec.json.decode(msgspec.json.encode(request))
        if not path.exists():
            if (self.folder / RESULTS).exists():
                raise BadRequest(f"{self.folder} holds results but not what was asked", hint="choose another --out")
            write_whole(path, msgspec.json.format(msgspec.json.encode(request)) + b"\n")
            return
        try:
            found = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise BadRequest(f"{path} cannot be read: {error}", hint="choose another --out") from error
        different = sorted(key for key in {*found, *wanted} if found.get(key) != wanted.get(key))
        if different:
            raise BadRequest(
                f"{self.folder} belongs to another run: {_differences(different, found, wanted)}",
                hint="choose another --out, or repeat the call that began it",
            )

    def _recover(self) -> list[RolloutResult]:
        """Results so far; a last line that a killed process left half-written is cut off."""
        path = self.folder / RESULTS
        data = path.read_bytes()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.ftruncate(self._results, len(whole))
        results = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                results.append(decode_result(line))
            except BadRequest as error:
                raise BadRequest(
                    f"{path}:{number}: {error}", hint="repair or remove that line, or choose another --out"
                ) from error
        os.lseek(self._results, 0, os.SEEK_END)
        return list({result.key: result for result in results}.values())

    # --- a full disk ---------------------------------------------------------------------------------------------------
    def _keep_back(self) -> None:
        path = self.folder / RESERVE
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, RESERVE_BYTES)
        except OSError:
            path.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)

    def _release_reserve(self) -> bool:
        try:
            (self.folder / RESERVE).unlink()
        except FileNotFoundError:
            return False
        return True

    def _append_last(self, line: bytes, result: RolloutResult, failure: WriteFailed) -> None:
        try:
            self._append(line)
        except OSError as again:
            failure.add_note(f"the space kept back was not enough: {again.strerror}")
        else:
            self.done.append(result)

    def _append(self, line: bytes) -> None:
        """All of the line or nothing."""
        end = os.lseek(self._results, 0, os.SEEK_END)
        try:
            written = 0
            while written < len(line):
                written += os.write(self._results, line[written:])
            os.fsync(self._results)
        except OSError:
            os.ftruncate(self._results, end)
            raise


def read_results(folder: str | os.PathLike[str]) -> list[RolloutResult]:
    """The results in a run's folder, for reading while or after it runs; a torn last line is passed over.

    Raises:
        BadRequest: there is no run in the folder, or a line is no result.
    """
    path = Path(folder) / RESULTS
    try:
        data = path.read_bytes()
    except OSError as error:
        raise BadRequest(f"{folder} holds no run: {error.strerror}", hint="give the --out of a `sandlot run`") from error
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    return list({result.key: result for result in map(decode_result, lines)}.values())


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is the whole new one or the old one, also after a crash.

    Raises:
        WriteFailed: nothing was changed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):  # where nothing can be written, nothing can be removed: the first failure is the one to tell
            temporary.unlink(missing_ok=True)
        raise WriteFailed.from_os(error, path) from error
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _differences(names: list[str], found: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    def short(value: object) -> str:
        text = str(value)
        return text if len(text) <= 40 else f"{text[:37]}..."

    return ", ".join(f"{name} was {short(found.get(name))}, now {short(wanted.get(name))}" for name in names)
