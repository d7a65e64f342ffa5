"""Which parts of an agent's change reach the judge."""

from __future__ import annotations

import pytest

from sandlot.tasks.protect import guard_for

GUARD = guard_for(
    hidden=["tests/test_a.py", "tests/data/x.json", "src/pkg/check_it.py"],
    gold=["src/pkg/core.py", "pyproject.toml", "tests/helper.py"],
    import_roots=["src", "."],
    present=["src/pkg", "docs"],
)


@pytest.mark.parametrize(
    "path",
    ["src/pkg/core.py", "src/pkg/new.py", "README.md", "src/pkg/json.py", "docs/conf.py", "tests/helper.py", "newpkg/a.py"],
)
def test_changes_to_the_code_count(path: str) -> None:
    """Anything an answer may need passes: new modules, and names of the standard library inside a package."""
    assert GUARD.reason(path) is None


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("conftest.py", "runner configuration"),
        ("src/pkg/conftest.py", "runner configuration"),
        ("pyproject.toml", "runner configuration"),
        ("setup.cfg", "runner configuration"),
        ("src/sitecustomize.py", "runner configuration"),
        ("src/evil.pth", "runner configuration"),
        ("tests/test_a.py", "hidden test"),
        ("tests/data/x.json", "hidden test"),
        ("src/pkg/check_it.py", "hidden test"),
        ("tests/data/x.json/below", "hidden test"),
        ("tests/test_new.py", "beside the hidden tests"),
        ("tests/__init__.py", "beside the hidden tests"),
        ("src/pkg/__pycache__/core.cpython-311.pyc", "compiled code"),
        ("src/pkg/core.pyc", "compiled code"),
        ("evil.egg-info/entry_points.txt", "package metadata"),
        ("src/evil-1.0.dist-info/entry_points.txt", "package metadata"),
        (".git/hooks/pre-commit", "version control"),
        ("src/json.py", "stands in for"),
        ("json/__init__.py", "stands in for"),
        ("_pytest/runner.py", "stands in for"),
        ("src/pytest.py", "stands in for"),
        ("random.cpython-311-x86_64-linux-gnu.so", "stands in for"),
    ],
)
def test_what_could_steer_the_runner_is_left_out(path: str, reason: str) -> None:
    """Each way in has its reason, which the report names."""
    assert reason in (GUARD.reason(path) or "")


def test_module_that_the_clean_tree_has_may_be_changed() -> None:
    """A project may have a module named like one of the standard library; only new ones stand in for it."""
    assert guard_for(hidden=[], gold=[], present=["types.py"]).reason("types.py") is None
    assert guard_for(hidden=[], gold=[]).reason("types.py") is not None


def test_directories_above_hidden_tests_stay() -> None:
    """Files in them may change, but the agent cannot swap the directory for a link or remove it."""
    assert [GUARD.replaces_directory(path) for path in ("tests", "tests/data", "src", "docs")] == [True, True, True, False]


def test_runner_files_of_the_right_change_come_from_it() -> None:
    """They are needed as the right change has them, and the agent's are never used."""
    assert GUARD.from_gold == {"pyproject.toml"}
