"""The reporter that runs inside, run for real, and the reading of what it says."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.tasks.controls import control_file, poison
from sandlot.tasks.records import Records, read_records

SECRET = bytes(range(32))
RUNNER = resources.files("sandlot.tasks.inside").joinpath("run_pytest.py")

SUITE = """
import os
import pytest

def test_passes(): pass

@pytest.mark.parametrize("x", [1, "é/ü::["])
def test_parameters(x):
    assert x

class TestClass:
    def test_fails(self):
        assert 1 == 2, "because"

    @pytest.mark.skip
    def test_skipped(self): pass

    @pytest.mark.xfail
    def test_expected(self): assert False

@pytest.fixture
def broken():
    raise RuntimeError("no fixture")

def test_error(broken): pass

@pytest.fixture
def sour():
    yield
    raise RuntimeError("late")

def test_teardown(sour):
    assert True
"""

Run = Callable[..., tuple[Records, subprocess.CompletedProcess[bytes]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a suite in a tree by the runner itself."""

    def call(
        suite: str, *, name: str = "test_it.py", control: Path | None = None, roots: tuple[str, ...] = ()
    ) -> tuple[Records, subprocess.CompletedProcess[bytes]]:
        tree = tmp_path / "tree"
        tree.mkdir(exist_ok=True)
        (tree / name).write_text(suite)
        out = tmp_path / "records"
        out.unlink(missing_ok=True)
        request = {
            "secret": SECRET.hex(),
            "out": str(out),
            "tree": str(tree),
            "import_roots": [str(tree), *roots],
            "control": None if control is None else str(control),
            "arguments": ["-q", "-p", "no:cacheprovider", f"--rootdir={tree}", name],
        }
        with resources.as_file(RUNNER) as runner:
            argv = [sys.executable, "-I", "-B", str(runner)]
            done = subprocess.run(argv, input=json.dumps(request).encode(), capture_output=True, timeout=60, check=False)
        return read_records(out.read_bytes() if out.exists() else b"", SECRET), done

    return call


def test_every_outcome_is_told_by_its_exact_id(run: Run) -> None:
    """Passed, failed, skipped, expected, and errors before and after the test's own body."""
    records, done = run(SUITE)
    assert records.complete, done.stdout
    assert {test.partition("::")[2]: outcome.outcome for test, outcome in records.outcomes.items()} == {
        "test_passes": "passed",
        "test_parameters[1]": "passed",
        "test_parameters[\\xe9/\\xfc::[]": "passed",
        "TestClass::test_fails": "failed",
        "TestClass::test_skipped": "skipped",
        "TestClass::test_expected": "xfailed",
        "test_error": "error",
        "test_teardown": "error",
    }
    assert "because" in records.outcomes["test_it.py::TestClass::test_fails"].reason


def test_file_that_cannot_be_collected_is_told(run: Run) -> None:
    """With the reason, and without losing the other files."""
    records, _ = run("import nowhere_to_be_found\n")
    assert records.complete
    assert "nowhere_to_be_found" in records.collect_errors["test_it.py"]


@pytest.mark.parametrize("ending", ["import os; os._exit(0)", "import sys; sys.exit(0)", "import os; os.kill(os.getpid(), 9)"])
@pytest.mark.parametrize("place", ["{}\ndef test_a(): pass", "def test_a():\n    {}"])
def test_run_that_ends_itself_is_not_whole(run: Run, ending: str, place: str) -> None:
    """Whatever the exit code: what passed so far may be true, but the run did not come to its end or did not pass."""
    records, _ = run(place.format(ending))
    passed = [test for test, outcome in records.outcomes.items() if outcome.outcome == "passed"]
    assert not passed


def test_lines_added_to_the_channel_by_others_are_found(run: Run, tmp_path: Path) -> None:
    """A record that was not made with the key ends the reading."""
    forged = json.dumps(["test", "test_it.py::test_b", "call", "passed", "", 0])
    records, _ = run(
        f"def test_a():\n    open({str(tmp_path / 'records')!r}, 'a').write('0' * 64 + ' ' + {forged!r} + chr(10))\n"
    )
    assert not records.complete
    assert "not made by the reporter" in records.broken
    assert "test_it.py::test_b" not in records.outcomes


def test_modules_of_the_tree_do_not_replace_the_runner(run: Run, tmp_path: Path) -> None:
    """The runner is imported before the tree is on the import path."""
    tree = tmp_path / "tree"
    (tree / "_pytest").mkdir(parents=True)
    (tree / "_pytest" / "__init__.py").write_text("raise SystemExit(0)")
    (tree / "json.py").write_text("raise SystemExit(0)")
    records, done = run("import json\ndef test_a(): json.dumps({})\n")
    assert records.complete, done.stdout
    assert records.outcomes["test_it.py::test_a"].outcome == "passed"


def test_package_of_the_tree_wins_over_the_one_the_runner_uses(run: Run, tmp_path: Path) -> None:
    """A project that pytest itself depends on is tested from the tree, not from the environment."""
    (tmp_path / "tree" / "packaging").mkdir(parents=True)
    (tmp_path / "tree" / "packaging" / "__init__.py").write_text("MINE = True")
    records, done = run("def test_a():\n    import packaging\n    assert packaging.MINE\n")
    assert records.outcomes["test_it.py::test_a"].outcome == "passed", done.stdout


def test_control_tests_come_out_as_they_must(run: Run, tmp_path: Path) -> None:
    """In an honest run each control test ends as it was made to."""
    control = control_file(random.Random(7))
    (tmp_path / control.name).write_text(control.source)
    records, done = run("def test_a(): pass\n", control=tmp_path / control.name)
    assert records.outcomes["test_it.py::test_a"].outcome == "passed", done.stdout
    assert control.contradictions(records.outcomes) == ()


def test_code_that_makes_everything_pass_contradicts_the_controls(run: Run, tmp_path: Path) -> None:
    """Patching the runner from inside shows in the tests that must fail."""
    control = control_file(random.Random(7))
    (tmp_path / control.name).write_text(control.source)
    cheat = "import _pytest.python\n_pytest.python.Function.runtest = lambda self: None\ndef test_a(): assert False\n"
    records, _ = run(cheat, control=tmp_path / control.name)
    assert records.outcomes["test_it.py::test_a"].outcome == "passed"
    assert set(control.contradictions(records.outcomes)) == {name for name, passes in control.expected.items() if not passes}


POISONABLE = '''
import unittest
import pytest

def helper(): return 1

@pytest.mark.parametrize("x", [1, 2])
def test_a(x):
    """Words."""
    assert helper() == 1

class TestIt(unittest.TestCase):
    def test_method(self):
        @staticmethod
        def inner(): pass
        self.assertTrue(True)

    class TestInner:
        async def test_deep(self): pass

if helper():
    def test_conditional():
        assert True

def test_one_line(): pass
'''


def test_poisoned_tests_fail_under_their_own_names(run: Run) -> None:
    """Functions, methods and conditional definitions fail; what cannot be reached in plain sight is said not to be."""
    ids = [
        f"test_it.py::{name}" for name in ("test_a[1]", "test_a[2]", "TestIt::test_method", "test_conditional", "test_one_line")
    ]
    poisoned = poison(POISONABLE, "test_it.py", [*ids, "other.py::test_a"], random.Random(1))
    assert poisoned.tests == set(ids[:-1])
    records, done = run(poisoned.source)
    assert {test: records.outcomes[test].outcome for test in ids} == dict.fromkeys(ids[:-1], "failed") | {ids[-1]: "passed"}
    assert records.complete, done.stdout


@pytest.mark.parametrize("source", ["def broken(:\n", "\0", "x = " + "(" * 2000])
def test_source_that_cannot_be_parsed_is_left_alone(source: str) -> None:
    """Tests may be written for another Python; then there is no control, and that is said."""
    assert poison(source, "t.py", ["t.py::test_a"], random.Random(1)) == poison(source, "t.py", [], random.Random(1))


def test_control_files_are_never_all_pass_or_all_fail() -> None:
    """Neither answer to everything can be right."""
    for seed in range(50):
        pattern = set(control_file(random.Random(seed)).expected.values())
        assert pattern == {True, False}


@given(st.lists(st.binary(max_size=80)))
@settings(deadline=None)
def test_bytes_that_the_reporter_did_not_write_never_count(lines: list[bytes]) -> None:
    """Any bytes at all: no outcome, no crash."""
    records = read_records(b"\n".join(lines) + b"\n", SECRET)
    assert (records.outcomes, records.complete) == ({}, False)
