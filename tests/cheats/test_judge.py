"""The judge on honest answers: the forms that tasks and their tests come in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sandlot.pool import Pool
from sandlot.rollout import RolloutResult, RolloutSettings, rollouts
from sandlot.rollout.agents import CommandAgent
from sandlot.tasks import HiddenTests, PrintedRun, Task
from sandlot.tasks.patch import diff_trees
from tests.calc import TESTS

Judged = Callable[..., Awaitable[RolloutResult]]

OLD_TESTS = b"def test_nothing():\n    pass\n"

FORGIVING = """
import calc


def forgive(function):
    def inner():
        try:
            function()
        except AssertionError:
            pass
    return inner


def test_mean():
    assert calc.mean([6, 6, 6]) == 6


@forgive
def test_total():
    assert calc.total([1]) == 1
"""

UNITTEST = """
import unittest

import calc


class T(unittest.TestCase):
    def test_mean(self):
        self.assertEqual(calc.mean([6, 6, 6]), 6)

    def test_total(self):
        self.assertEqual(calc.total([1]), 1)
"""


@pytest.fixture
def judged(pool: Pool) -> Judged:
    """Runs one rollout of a task."""

    async def run(task: Task, agent: CommandAgent | str, settings: RolloutSettings | None = None) -> RolloutResult:
        (result,) = [result async for result in rollouts([task], agent, pool, settings=settings)]
        assert result.status == "scored", result.attempts
        return result

    return run


def _hidden(folder: Path, tests: str) -> HiddenTests:
    (folder / "other/tests").mkdir(parents=True)
    (folder / "other/tests/test_calc.py").write_text(tests)
    return HiddenTests(directory=folder / "other")


async def test_hidden_tests_may_be_a_patch(judged: Judged, task: Task) -> None:
    """As rows of public data sets have it; it is applied to the tree's own tests, whatever the agent did to those."""
    patch = diff_trees({"tests/test_calc.py": OLD_TESTS}, {"tests/test_calc.py": TESTS.encode()})
    task = replace(task, hidden=HiddenTests(patch=patch))
    assert (await judged(task, "gold")).reward == 1.0
    assert (await judged(task, CommandAgent("rm -rf tests; mkdir tests; echo x > tests/test_calc.py"))).reward == 0.0


async def test_judging_in_place_says_so(judged: Judged, task: Task) -> None:
    """The verdict of the weaker way is marked."""
    settings = RolloutSettings(where="in_place")
    for agent, reward in (("gold", 1.0), ("none", 0.0)):
        result = await judged(task, agent, settings)
        assert result.verdict is not None
        assert (result.reward, result.verdict.where, result.verdict.uncontrolled) == (reward, "in_place", 4)


async def test_control_that_does_not_hold_for_the_right_change_accuses_nobody(
    judged: Judged, task: Task, tmp_path: Path
) -> None:
    """A test that swallows its own failures passes when it is made to fail; the honest answer still scores."""
    name = "tests/test_calc.py::test_"
    task = replace(task, hidden=_hidden(tmp_path, FORGIVING), fail_to_pass=(f"{name}mean",), pass_to_pass=(f"{name}total",))
    result = await judged(task, "gold")
    assert (result.reward, result.verdict and result.verdict.reason) == (1.0, "resolved")


async def test_other_runners_are_read_by_their_printed_reports(judged: Judged, task: Task, tmp_path: Path) -> None:
    """By exact ids too; nothing could be controlled, and the verdict says so."""
    script = "cd tests && PYTHONPATH=.. /opt/env/bin/python -m unittest -v test_calc"
    ids = {name: (f"{name} (test_calc.T.{name})",) for name in ("test_mean", "test_total")}
    task = replace(
        task,
        hidden=_hidden(tmp_path, UNITTEST),
        fail_to_pass=ids["test_mean"],
        pass_to_pass=ids["test_total"],
        run=PrintedRun(script=script, parser="unittest"),
    )
    result = await judged(task, "gold")
    assert result.verdict is not None
    assert (result.reward, result.verdict.uncontrolled) == (1.0, 2)
    assert (await judged(task, "none")).reward == 0.0


async def test_agents_output_and_end_are_kept_and_decide_nothing(judged: Judged, task: Task) -> None:
    """A command that repairs the fault and then fails has repaired it."""
    fix = "sed -i 's|/ 2|/ len(values)|; s|values.0.|max(values)|' calc/__init__.py; cat $SANDLOT_PROBLEM_FILE; exit 3"
    result = await judged(task, CommandAgent(fix))
    assert result.agent is not None
    assert (result.reward, result.agent.end, result.agent.exit_code) == (1.0, "failed", 3)
    assert "Means are wrong." in result.agent.output_tail


async def test_command_agent_knows_its_task_and_its_time(judged: Judged, task: Task) -> None:
    """By the variables that the contract names, and nothing of the client's."""
    result = await judged(replace(task, agent_limit_s=50.0), CommandAgent("env | sort; pwd"))
    assert result.agent is not None
    lines = result.agent.output_tail.splitlines()
    assert {"SANDLOT_TASK=calc", "SANDLOT_SAMPLE=0", "SANDLOT_TREE=/testbed", "SANDLOT_TIME_LIMIT_S=50", "/testbed"} <= set(
        lines
    )
    assert not [line for line in lines if line.startswith(("HOME=/root/", "PYTHONPATH=", "VIRTUAL_ENV="))]


async def test_agent_that_outlives_its_time_is_stopped_with_all_it_started(judged: Judged, task: Task) -> None:
    """What it printed before is kept."""
    result = await judged(replace(task, agent_limit_s=2.0), CommandAgent("echo before; sleep 600 & sleep 600"))
    assert result.agent is not None
    assert (result.agent.end, result.agent.output_tail) == ("timed_out", "before\n")
    assert result.phases_s["agent"] < 60
