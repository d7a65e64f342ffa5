"""A task small enough for a test and real in every part: a package with a fault, hidden tests, an environment with pytest."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib import metadata
from pathlib import Path

from sandlot.tasks.patch import diff_trees

SOURCE = '''
"""Sums and means."""


def total(values):
    return sum(values)


def mean(values):
    return sum(values) / 2


def smallest(values):
    return min(values)


def count(values):
    return len(values)


def largest(values):
    return values[0]
'''

FIXED = SOURCE.replace("/ 2", "/ len(values)").replace("values[0]", "max(values)")

TESTS = """
import unittest

import pytest

import calc


def test_total():
    assert calc.total([1, 2, 3]) == 6


@pytest.mark.parametrize("n", [3, 4])
def test_mean(n):
    assert calc.mean([6] * n) == 6


class TestLargest(unittest.TestCase):
    def test_largest(self):
        self.assertEqual(calc.largest([1, 3, 2]), 3)
"""

NAMES = ("test_mean[3]", "test_mean[4]", "TestLargest::test_largest")


PATCH = diff_trees({"calc/__init__.py": SOURCE.encode()}, {"calc/__init__.py": FIXED.encode()})

SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin"


def system_python() -> str | None:
    """The Python that the `host` image has."""
    return shutil.which("python3", path=SYSTEM_PATH)


def make_layer(top: Path, python: str) -> None:
    """The tree and the environment, as directories to lay over this machine's system."""
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    top.chmod(0o755)
    environment = top / "opt/env"
    (environment / "bin").mkdir(parents=True)
    (environment / "bin/python").symlink_to(python)
    (environment / "pyvenv.cfg").write_text(f"home = {Path(python).parent}\ninclude-system-site-packages = false\n")
    _copy_packages(environment / f"lib/python{version}/site-packages")
    tree = top / "testbed"
    (tree / "calc").mkdir(parents=True)
    (tree / "tests").mkdir()
    (tree / "calc/__init__.py").write_text(SOURCE)
    (tree / "tests/test_calc.py").write_text("def test_nothing():\n    pass\n")


def _copy_packages(target: Path) -> None:
    """pytest and what it needs, as they are installed here: all of it is pure Python."""
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        for file in metadata.files(name) or ():
            if ".." in file.parts or "__pycache__" in file.parts:
                continue
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target / file)


def write_tasks(folder: Path, layer: Path, *names: str) -> Path:
    """A task file with one row a name, and the hidden tests beside it."""
    tests = folder / "hidden/tests"
    tests.mkdir(parents=True, exist_ok=True)
    (tests / "test_calc.py").write_text(TESTS)
    rows = [
        {
            "instance_id": name,
            "image": "host",
            "layers": [str(layer)],
            "env": {"PATH": f"/opt/env/bin:{SYSTEM_PATH}"},
            "problem_statement": "Means are wrong.",
            "patch": PATCH,
            "hidden_tests": "hidden",
            "FAIL_TO_PASS": [f"tests/test_calc.py::{test}" for test in NAMES],
            "PASS_TO_PASS": ["tests/test_calc.py::test_total"],
            "run": {"python": "/opt/env/bin/python"},
            "limits": {"test_s": 20.0},
        }
        for name in names
    ]
    file = folder / "tasks.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file
