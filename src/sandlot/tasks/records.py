"""What the reporter inside the sandbox said, checked. Pure: bytes and a secret in, outcomes out.

Everything in the bytes is hostile: size, encoding, order and content are checked, and the first record that does not follow
from the secret ends the reading.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import msgspec

from sandlot.tasks.task import Ending, Outcome

MAX_RECORD_BYTES: Final = 33_554_432
"""Bytes of all records of one run that are read: room for 100,000 tests with long ids."""

SECRET_BYTES: Final = 32
_CODE_CHARS: Final = 64
_OUTCOMES: Final = frozenset(get_args(Outcome))
_WORST: Final = {"error": 4, "failed": 3, "xfailed": 2, "xpassed": 2, "skipped": 2, "passed": 1}


@dataclass(frozen=True, slots=True)
class Records:
    """What can be believed of one run of the tests."""

    outcomes: Mapping[str, Ending] = field(default_factory=dict)
    collect_errors: Mapping[str, str] = field(default_factory=dict)
    """Untrusted text by file or directory that could not be collected."""
    complete: bool = False
    """The run came to its end and said so; nothing is missing, nothing was added."""
    broken: str = ""
    """Why the reading stopped early, or empty."""


def read_records(data: bytes, secret: bytes) -> Records:
    """Follow the chain from its first record as far as it holds."""
    reading = _Reading(key=secret)
    for line in data[:MAX_RECORD_BYTES].split(b"\n")[:-1]:
        reading.take(line)
        if reading.broken:
            break
    if not reading.broken and not reading.complete:
        reading.broken = "the run ended without its closing record"
    complete = reading.complete and not reading.broken
    return Records(reading.outcomes(), reading.collect_errors, complete, reading.broken)


@dataclass(slots=True)
class _Reading:
    key: bytes
    count: int = 0
    complete: bool = False
    broken: str = ""
    collect_errors: dict[str, str] = field(default_factory=dict)
    _phases: dict[str, list[Ending]] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)

    def take(self, line: bytes) -> None:
        code, _, body = line.partition(b" ")
        expected = hmac.new(self.key, body, hashlib.sha256).hexdigest().encode()
        if len(code) != _CODE_CHARS or not hmac.compare_digest(code, expected):
            self.broken = f"record {self.count + 1} was not made by the reporter"
            return
        if self.complete:
            self.broken = "there are records after the closing one"
            return
        self.key = hashlib.sha256(self.key + expected).digest()
        try:
            self._read(msgspec.json.decode(body, type=list[Any]))
        except (msgspec.MsgspecError, ValueError, TypeError) as error:
            self.broken = f"record {self.count + 1} is malformed: {type(error).__name__}"
        self.count += 1

    def _read(self, record: list[Any]) -> None:
        match record:
            case ["test", str(test), str(), str(outcome), str(reason), float(seconds) | int(seconds)] if outcome in _OUTCOMES:
                found = msgspec.convert([outcome, reason, float(seconds)], type=tuple[Outcome, str, float])
                self._phases.setdefault(test, []).append(Ending(*found))
            case ["done", str(test)]:
                self._done.add(test)
            case ["collect", str(node), str(reason)]:
                self.collect_errors[node] = reason
            case ["end", int(), int(count)] if count == self.count:
                self.complete = True
            case _:
                raise ValueError("unknown record")

    def outcomes(self) -> dict[str, Ending]:
        """One outcome a test: the worst of its phases. A test that was begun and not finished has none."""
        return {
            test: max(phases, key=lambda one: _WORST[one.outcome])
            for test, phases in self._phases.items()
            if test in self._done
        }
