"""Whether a reset may be believed: only when everything was verified."""

from __future__ import annotations

import pytest

from sandlot.reset import Verdict, judge
from sandlot.sandbox import ResetReport


def report(*, clean: bool, dirty: tuple[str, ...] = ()) -> ResetReport:
    return ResetReport(clean=clean, dirty=dirty, killed=0, changed_bytes=0, took_s=0.001)


@pytest.mark.parametrize(
    ("seen", "verdict"),
    [
        (report(clean=True), Verdict(True)),
        (report(clean=False, dirty=("mounts",)), Verdict(False, ("mounts",))),
        (report(clean=False), Verdict(False, ("unverified",))),
        (report(clean=True, dirty=("ipc",)), Verdict(False, ("ipc",))),
    ],
)
def test_in_doubt_it_is_dirty(seen: ResetReport, verdict: Verdict) -> None:
    """A report that contradicts itself is no clean report."""
    assert judge(seen) == verdict
