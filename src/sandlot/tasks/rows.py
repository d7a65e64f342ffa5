"""Files of JSON lines: every good row is used, every bad one is named by its line, and one never stops the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from sandlot.errors import BadRequest

MAX_ROW_BYTES: Final = 64 * 2**20
"""Bytes of one line; rows of public data sets with whole files inside stay below 10 MiB."""

Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class RowError:
    """One line that is no usable row, and why."""

    path: str
    line: int
    """Counted from 1, as editors do."""
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class RowsRead(Generic[Row]):
    """What a file held."""

    rows: tuple[Row, ...]
    errors: tuple[RowError, ...]


def read_rows(path: str | os.PathLike[str], decode: Callable[[bytes, int], Row]) -> RowsRead[Row]:
    """Decode each line that is not blank by `decode(line, number)`.

    A `BadRequest` of the decoder, text that is no JSON, and a line beyond `MAX_ROW_BYTES` become a `RowError`.

    Raises:
        BadRequest: the file cannot be read, or holds no row at all (the caller's fault).
    """
    name = os.fspath(path)
    rows: list[Row] = []
    errors: list[RowError] = []
    try:
        with Path(path).open("rb") as lines:
            for number, line in _numbered(lines):
                try:
                    rows.append(_decode(decode, line, number))
                except (BadRequest, msgspec.MsgspecError, UnicodeError) as error:
                    errors.append(RowError(name, number, str(error)))
    except OSError as error:
        raise BadRequest(f"cannot read {name}: {error.strerror}", hint="check the path and its rights") from error
    if not rows and not errors:
        raise BadRequest(f"{name} has no rows", hint="it must hold one JSON object a line")
    return RowsRead(tuple(rows), tuple(errors))


def _numbered(lines: Iterable[bytes]) -> Iterable[tuple[int, bytes]]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield number, line


def _decode(decode: Callable[[bytes, int], Row], line: bytes, number: int) -> Row:
    if len(line) > MAX_ROW_BYTES:
        raise BadRequest(f"the row is longer than {MAX_ROW_BYTES >> 20} MiB")
    return decode(line, number)
