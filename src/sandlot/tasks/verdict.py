"""From test outcomes to a reward. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sandlot.tasks.task import Ending

Reason = Literal[
    "resolved",  # every test of FAIL_TO_PASS and PASS_TO_PASS passed
    "tests_failed",  # some of FAIL_TO_PASS did not pass
    "broke_passing",  # FAIL_TO_PASS passed, but something of PASS_TO_PASS no longer does
    "run_cut_short",  # the test run died or ended itself before its end
    "tests_timed_out",  # the test run took longer than its limit
    "tampered",  # tests that must fail were reported as passed
    "change_unusable",  # what the agent left of the tree cannot be taken over: too large, or no tree any more
]

NAMED_TESTS: Final = 20
"""Failing tests that a verdict names; the counts are always exact."""


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Files of an agent's change that did not reach the judge, for one reason."""

    reason: str
    files: int
    examples: tuple[str, ...]
    """Untrusted names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the judge found. The reward is 1.0 only for `resolved`, else 0.0."""

    reason: Reason
    fail_to_pass_passed: int = 0
    fail_to_pass_total: int = 0
    pass_to_pass_passed: int = 0
    pass_to_pass_total: int = 0
    not_passed: tuple[str, ...] = ()
    """The first `NAMED_TESTS` expected tests that did not pass."""
    left_out: tuple[LeftOut, ...] = ()
    controls: int = 0
    """Control tests whose outcome was known beforehand and came out so."""
    uncontrolled: int = 0
    """Expected tests for which no control could be made (generated tests, doctests)."""
    where: Literal["twin", "in_place"] = "twin"
    detail: str = ""

    @property
    def reward(self) -> float:
        return 1.0 if self.reason == "resolved" else 0.0


def judge(
    fail_to_pass: Sequence[str], pass_to_pass: Sequence[str], outcomes: Mapping[str, Ending], *, cut_short: str = ""
) -> Verdict:
    """The verdict on exact test ids: a test that is missing, skipped or expected to fail has not passed.

    `cut_short` says why the run is known not to be whole; then nothing in it counts as resolved.
    """

    def missing(wanted: Sequence[str]) -> list[str]:
        return [test for test in wanted if test not in outcomes or outcomes[test].outcome != "passed"]

    failing, broken = missing(fail_to_pass), missing(pass_to_pass)
    reason: Reason = "resolved"
    if cut_short:
        reason = "run_cut_short"
    elif failing:
        reason = "tests_failed"
    elif broken:
        reason = "broke_passing"
    return Verdict(
        reason=reason,
        fail_to_pass_passed=len(fail_to_pass) - len(failing),
        fail_to_pass_total=len(fail_to_pass),
        pass_to_pass_passed=len(pass_to_pass) - len(broken),
        pass_to_pass_total=len(pass_to_pass),
        not_passed=tuple((failing + broken)[:NAMED_TESTS]),
        detail=cut_short,
    )
