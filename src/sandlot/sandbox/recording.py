"""The seam by which every call of a sandbox can be recorded: a rollout writes them down, a debugger prints them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sandlot.errors import SandlotError
from sandlot.result import Result

Kind = Literal[
    "exec", "start", "wait", "shell", "read", "write", "mkdir", "remove", "upload", "download", "changes", "apply"
]  # fmt: skip
"""Of a stream nothing is recorded: its reader has seen it all."""


@dataclass(frozen=True, slots=True)
class Record:
    """One finished call. `contents` refers to what the caller gave or got: keeping a digest or all of it is a choice."""

    kind: Kind
    subject: str
    """The command as text, or the path."""
    began_s: float
    """Unix time in seconds."""
    took_s: float
    """As the caller saw it, the way to the sandbox included."""
    error: str = ""
    """The `kind` of the error it ended with (`sandlot.errors`), `cancelled`, or empty."""
    result: Result | None = None
    """For commands that ended; its streams are in `contents` too."""
    contents: Mapping[str, bytes] = field(default_factory=dict)
    """stdin, stdout, stderr of a command; data of a read or write. Empty for transfers of trees."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Bytes for each of the contents (a stream's is what was written, kept or not), or what a transfer moved."""

    def digests(self) -> dict[str, str]:
        """SHA-256 in hex of each of the contents."""
        return {name: hashlib.sha256(data).hexdigest() for name, data in self.contents.items()}


class Recorder(Protocol):
    """Takes records, one call after the other, in the order in which calls end. It must be quick and must not raise."""

    def record(self, record: Record) -> None: ...


class Recording:
    """Times one call and hands its record over when the block is left; with no recorder it does nothing."""

    __slots__ = ("_began_s", "_contents", "_kind", "_recorder", "_result", "_sizes", "_start_s", "_subject")

    def __init__(self, recorder: Recorder | None, kind: Kind, subject: object) -> None:
        self._recorder = recorder
        if recorder is None:
            return
        self._kind, self._subject = kind, subject
        self._began_s, self._start_s = time.time(), time.monotonic()
        self._result: Result | None = None
        self._contents: dict[str, bytes] = {}
        self._sizes: dict[str, int] = {}

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _trace: object) -> None:
        if self._recorder is None:
            return
        word = "" if error is None else error.kind if isinstance(error, SandlotError) else "cancelled"
        self._recorder.record(
            Record(
                kind=self._kind,
                subject=_subject_text(self._subject),
                began_s=self._began_s,
                took_s=time.monotonic() - self._start_s,
                error=word,
                result=self._result,
                contents=self._contents,
                sizes=self._sizes,
            )
        )

    def data(self, name: str, data: bytes | None) -> None:
        """What went in or came out."""
        if self._recorder is not None and data is not None:
            self._contents[name] = data
            self._sizes[name] = len(data)

    def size(self, name: str, count: int) -> None:
        if self._recorder is not None:
            self._sizes[name] = count

    def ended(self, result: Result) -> None:
        if self._recorder is None:
            return
        self._result = result
        for name, stream in (("stdout", result.out), ("stderr", result.err)):
            self._contents[name] = stream.data
            self._sizes[name] = stream.total_bytes


def _subject_text(subject: object) -> str:
    if isinstance(subject, bytes):
        return subject.decode("utf-8", "replace")
    if isinstance(subject, (list, tuple)):
        return " ".join(_subject_text(item) for item in subject)
    return str(subject)
