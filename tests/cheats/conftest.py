"""A small real task, and a real provider: each cheat is a rollout like any other."""

from __future__ import annotations

import shutil
import subprocess
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import metadata
from pathlib import Path

import pytest

from sandlot.opening import local
from sandlot.pool import Pool
from sandlot.rollout import RolloutResult, Settings, rollouts
from sandlot.rollout.agents import Agent
from sandlot.spec import Spec
from sandlot.tasks import HiddenTests, PytestRun, Task
from sandlot.tasks.patch import diff_trees

RunOne = Callable[..., Awaitable[RolloutResult]]

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


@pytest.fixture(scope="session")
def layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree with a fault in it, and an environment that has pytest, as directories to lay over this machine's system."""
    python = shutil.which("python3", path="/usr/local/bin:/usr/bin:/bin")
    if python is None:
        pytest.skip("this machine's system has no Python")
    ask = "import sys; print('%d.%d' % sys.version_info[:2])"
    version = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    top = tmp_path_factory.mktemp("layer")
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
    return top


def _copy_packages(target: Path) -> None:
    """pytest and what it needs, as they are installed here: all of it is pure Python."""
    for name in ("pytest", "pluggy", "iniconfig", "packaging", "pygments"):
        for file in metadata.files(name) or ():
            if ".." in file.parts or "__pycache__" in file.parts:
                continue
            (target / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(str(file.locate()), target / file)


@pytest.fixture
def task(layer: Path, tmp_path: Path) -> Task:
    """Three tests to repair, one to keep."""
    hidden = tmp_path / "hidden"
    (hidden / "tests").mkdir(parents=True)
    (hidden / "tests/test_calc.py").write_text(textwrap.dedent(TESTS))
    return Task(
        id="calc",
        spec=Spec(
            image="host", layers=(str(layer),), env={"PATH": "/opt/env/bin:/usr/local/bin:/usr/bin:/bin"}, workdir="/testbed"
        ),
        problem="Means are wrong.",
        gold_patch=diff_trees({"calc/__init__.py": SOURCE.encode()}, {"calc/__init__.py": FIXED.encode()}),
        hidden=HiddenTests(directory=hidden),
        fail_to_pass=tuple(f"tests/test_calc.py::{name}" for name in NAMES),
        pass_to_pass=("tests/test_calc.py::test_total",),
        run=PytestRun(python="/opt/env/bin/python"),
        test_limit_s=20.0,
    )


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    """Sandboxes of this machine."""
    async with local() as provider, Pool(provider) as pool:
        yield pool
    assert provider.closing is not None
    assert provider.closing.left == ()


@pytest.fixture
def run_one(pool: Pool, task: Task) -> RunOne:
    """Runs one rollout of an agent to its verdict."""

    async def run(agent: Agent | str, settings: Settings | None = None) -> RolloutResult:
        (result,) = [result async for result in rollouts([task], agent, pool, settings=settings)]
        assert result.status == "scored", result.attempts
        return result

    return run
