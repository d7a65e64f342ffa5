"""Rewards from exact test ids."""

from __future__ import annotations

import pytest

from sandlot.tasks.task import Ending, Outcome
from sandlot.tasks.verdict import judge


def _outcomes(**outcomes: Outcome) -> dict[str, Ending]:
    return {test: Ending(outcome) for test, outcome in outcomes.items()}


def test_all_expected_tests_passed_is_a_reward_of_one() -> None:
    """Other tests, whatever they did, do not matter."""
    verdict = judge(["a"], ["b"], _outcomes(a="passed", b="passed", other="failed"))
    assert (verdict.reason, verdict.reward) == ("resolved", 1.0)


@pytest.mark.parametrize("outcome", ["failed", "error", "skipped", "xfailed", "xpassed"])
@pytest.mark.parametrize(("test", "reason"), [("a", "tests_failed"), ("b", "broke_passing")])
def test_only_passed_is_passed(test: str, outcome: Outcome, reason: str) -> None:
    """A test that is skipped or expected to fail has not passed, in either list."""
    verdict = judge(["a"], ["b"], _outcomes(a="passed", b="passed") | _outcomes(**{test: outcome}))
    assert (verdict.reason, verdict.reward, verdict.not_passed) == (reason, 0.0, (test,))


def test_missing_test_has_not_passed() -> None:
    """A test that did not run at all counts against the change."""
    verdict = judge(["a", "c"], [], _outcomes(a="passed"))
    assert (verdict.reason, verdict.fail_to_pass_passed, verdict.fail_to_pass_total) == ("tests_failed", 1, 2)


def test_run_cut_short_is_never_resolved() -> None:
    """Even when every expected test was seen to pass before the run ended."""
    verdict = judge(["a"], [], _outcomes(a="passed"), cut_short="no closing record")
    assert (verdict.reason, verdict.reward, verdict.detail) == ("run_cut_short", 0.0, "no closing record")
