"""Reports that other test runners print, read into exact test ids. Pure.

What is printed can be forged by the code under test, so a verdict from here says that it is weaker (docs/judging.md). A
parser takes
the whole output and gives one ending a test; lines that it does not know are passed over. A test reported twice keeps its
worse ending.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from sandlot.tasks.task import Ending, Outcome, Outcomes

Parser = Callable[[str], Outcomes]

_UNITTEST: Final = re.compile(
    r"^(\w+ \([\w.]+\)|[\w.]+)(?:\n.*)? \.\.\. "  # with a docstring, its first line comes between
    r"(ok|FAIL|ERROR|skipped|expected failure|unexpected success)",
    re.MULTILINE,
)
_UNITTEST_WORDS: Final[dict[str, Outcome]] = {
    "ok": "passed",
    "FAIL": "failed",
    "ERROR": "error",
    "skipped": "skipped",
    "expected failure": "xfailed",
    "unexpected success": "xpassed",
}
_TAP: Final = re.compile(r"^(not )?ok\b(?: +\d+)?(?: +-)? *([^#\n]*?) *(?:# *(skip|todo)\b.*)?$", re.MULTILINE | re.IGNORECASE)


class _GoEvent(msgspec.Struct, rename="pascal"):
    action: str
    package: str = ""
    test: str = ""


def parse_unittest(text: str) -> Outcomes:
    """`python -m unittest -v` and what is built on it: ids are "test_name (module.Class)"."""
    return _worst((match[1], _UNITTEST_WORDS[match[2]]) for match in _UNITTEST.finditer(text))


def parse_tap(text: str) -> Outcomes:
    """The Test Anything Protocol: ids are the descriptions."""

    def ending(match: re.Match[str]) -> Outcome:
        if match[3]:
            return "skipped" if match[3].lower() == "skip" else "xfailed"
        return "failed" if match[1] else "passed"

    return _worst((match[2], ending(match)) for match in _TAP.finditer(text) if match[2])


def parse_go(text: str) -> Outcomes:
    """`go test -json`: ids are "package::Test/subtest"."""
    words: dict[str, Outcome] = {"pass": "passed", "fail": "failed", "skip": "skipped"}
    found: list[tuple[str, Outcome]] = []
    for line in text.splitlines():
        try:
            event = msgspec.json.decode(line, type=_GoEvent)
        except (msgspec.MsgspecError, UnicodeError):
            continue  # a line of the program itself among the reports
        if event.test and event.action in words:
            found.append((f"{event.package}::{event.test}", words[event.action]))
    return _worst(found)


PARSERS: Final[Mapping[str, Parser]] = MappingProxyType({"unittest": parse_unittest, "tap": parse_tap, "go": parse_go})
"""By name, as rows name them. A judge can be given more."""

_RANK: Final[dict[Outcome, int]] = {"passed": 0, "skipped": 1, "xpassed": 2, "xfailed": 2, "failed": 3, "error": 4}


def _worst(found: Iterable[tuple[str, Outcome]]) -> dict[str, Ending]:
    endings: dict[str, Ending] = {}
    for test, outcome in found:
        if test not in endings or _RANK[outcome] > _RANK[endings[test].outcome]:
            endings[test] = Ending(outcome)
    return endings
