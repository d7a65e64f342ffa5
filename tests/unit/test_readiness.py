"""What counts as a first command that succeeded."""

from __future__ import annotations

import pytest

from sandlot.errors import BadRequest, ImageInvalid, NotReady, SandlotError
from sandlot.readiness import judge
from sandlot.result import Result, Stream


@pytest.mark.parametrize("code", [0, 127])
def test_a_shell_that_ran_or_is_not_there_is_usable(code: int) -> None:
    """127 is the daemon's word that the image has no `sh`."""
    assert judge("a", Result(code)) is None


@pytest.mark.parametrize(
    ("result", "kind"),
    [
        (Result(126), ImageInvalid),
        (Result(1), ImageInvalid),
        (Result(None, signal=11), ImageInvalid),
        (Result(None, signal=9, oom_killed=True), BadRequest),
        (Result(None, signal=9, timed_out=True), NotReady),
        (Result(0, timed_out=True), NotReady),
    ],
)
def test_every_other_end_is_a_failure_of_its_own_kind(result: Result, kind: type[SandlotError]) -> None:
    """Only a sandbox that is slow may be tried again."""
    failure = judge("a", result)
    assert type(failure) is kind
    assert failure.retriable == (kind is NotReady)


def test_the_failure_carries_what_was_said() -> None:
    """Cut, since it comes from inside."""
    failure = judge("a", Result(126, err=Stream(b"sh: exec format error" + b"!" * 1000)))
    assert failure is not None
    assert "exec format error" in failure.message
    assert len(failure.message) < 400
