"""Printed reports of other runners."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sandlot.tasks.printed import PARSERS, parse_go, parse_tap, parse_unittest


def test_unittest_as_python_really_prints_it(tmp_path: Path) -> None:
    """The words of the running interpreter, docstrings and prints of the tests included."""
    (tmp_path / "test_it.py").write_text(
        "import unittest\n"
        "class T(unittest.TestCase):\n"
        "    def test_a(self): pass\n"
        "    def test_doc(self):\n        'First line.'\n"
        "    def test_b(self): self.fail()\n"
        "    def test_c(self): raise OSError\n"
        "    @unittest.skip('x')\n    def test_d(self): pass\n"
        "    @unittest.expectedFailure\n    def test_e(self): self.fail()\n"
    )
    done = subprocess.run([sys.executable, "-m", "unittest", "-v"], cwd=tmp_path, capture_output=True, text=True, check=False)
    found = {test.split(" ")[0]: ending.outcome for test, ending in parse_unittest(done.stderr).items()}
    assert found == {
        "test_a": "passed",
        "test_doc": "passed",
        "test_b": "failed",
        "test_c": "error",
        "test_d": "skipped",
        "test_e": "xfailed",
    }


def test_tap_directives_are_not_passes() -> None:
    """Skips and to-dos are told apart from passes; numbers and dashes are no part of the id."""
    text = "1..5\nok 1 - a b\nnot ok 2 - c\nok 3 - d # SKIP slow\nnot ok 4 e # TODO later\n# comment\nok 5\n"
    assert {test: ending.outcome for test, ending in parse_tap(text).items()} == {
        "a b": "passed",
        "c": "failed",
        "d": "skipped",
        "e": "xfailed",
    }


def test_go_reports_are_read_between_other_output() -> None:
    """Package events and the program's own lines are passed over."""
    text = (
        'noise\n{"Action":"pass","Package":"p","Test":"TestA/x"}\n'
        '{"Action":"fail","Package":"p","Test":"TestB"}\n{"Action":"pass","Package":"p"}\n'
    )
    assert {test: ending.outcome for test, ending in parse_go(text).items()} == {"p::TestA/x": "passed", "p::TestB": "failed"}


@pytest.mark.parametrize("first", ["ok 1 - a\nnot ok 2 - a\n", "not ok 1 - a\nok 2 - a\n"])
def test_a_test_reported_twice_keeps_the_worse_ending(first: str) -> None:
    """Printing a second, better line gains nothing."""
    assert parse_tap(first)["a"].outcome == "failed"


@pytest.mark.parametrize("name", sorted(PARSERS))
@pytest.mark.parametrize("text", ["", "\0\x1b[31m", "x" * 200_000, "ok " * 50_000, "{" * 50_000, "a (b) " * 50_000])
def test_any_text_is_read_without_harm(name: str, text: str) -> None:
    """Output of a sandbox is hostile: no crash, no endless matching."""
    PARSERS[name](text)
