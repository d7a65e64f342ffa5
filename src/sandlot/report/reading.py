"""Reads a run's folder: the results and the events, and of each only the fields that the report uses.

The files hold text that came from sandboxes and may have been cut off anywhere; a line that cannot be read is counted, never
fatal.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from sandlot.errors import BadRequest

MAX_LINE_BYTES: Final = 1_048_576
"""A longer line is none that Sandlot writes."""


class Tried(msgspec.Struct, frozen=True):
    """One try that failed."""

    phase: str
    kind: str
    message: str
    retriable: bool
    seconds: float


class LeftOut(msgspec.Struct, frozen=True):
    """Files that did not reach the judge, for one reason."""

    reason: str
    files: int


class Judged(msgspec.Struct, frozen=True):
    """The verdict of one rollout."""

    reason: str
    left_out: tuple[LeftOut, ...] = ()
    controls: int = 0
    uncontrolled: int = 0
    where: str = "twin"
    detail: str = ""


class Rolled(msgspec.Struct, frozen=True):
    """One finished rollout."""

    task: str
    sample: int
    status: str
    reward: float | None
    seconds: float
    started_s: float
    phases_s: dict[str, float] = {}
    attempts: tuple[Tried, ...] = ()
    verdict: Judged | None = None
    calls: int = 0


class Happened(msgspec.Struct, frozen=True):
    """One event. `data` holds scalars."""

    seq: int
    """1, 2, 3, ... within one process; a continued run begins again at 1."""
    mono_s: float
    kind: str
    sandbox: str = ""
    data: dict[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Run:
    """All that is known of a run."""

    folder: Path
    request: dict[str, Any]
    results: tuple[Rolled, ...]
    events: tuple[Happened, ...]
    unreadable: int
    """Lines that could not be read."""


Line = TypeVar("Line")


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Everything in a run's folder; it may still be running.

    Raises:
        BadRequest: there is no run in the folder (the caller's fault).
    """
    folder = Path(folder)
    if not (folder / "results.jsonl").is_file():
        raise BadRequest(f"{folder} holds no run", hint="give the --out of a `sandlot run`")
    bad: list[int] = []
    results = {(one.task, one.sample): one for one in _lines(folder / "results.jsonl", Rolled, bad)}
    events = tuple(_lines(folder / "events.jsonl", Happened, bad))
    return Run(folder, _request(folder / "request.json"), tuple(results.values()), events, len(bad))


def _lines(path: Path, kind: type[Line], bad: list[int]) -> Iterator[Line]:
    decoder = msgspec.json.Decoder(kind)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE_BYTES), b""), 1):
                try:
                    yield decoder.decode(line)
                except (msgspec.MsgspecError, UnicodeError):
                    bad.append(number)
    except FileNotFoundError:
        return


def _request(path: Path) -> dict[str, Any]:
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.MsgspecError):
        return {}
