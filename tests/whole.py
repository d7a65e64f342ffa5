"""Where `CI=true` stands for a whole machine, what a test cannot have is a failure; elsewhere it is a skip that says what.

A plugin of pytest, for every test there is. Some things differ between kernels and no setup brings them: tests that are marked
`may_lack` may be skipped anywhere.
"""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test, or a part that it wants."""
    report = yield
    if item.get_closest_marker("may_lack") is None:
        _insist(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A whole file."""
    report = yield
    _insist(report)
    return report


def _insist(report: pytest.TestReport | pytest.CollectReport) -> None:
    if os.environ.get("CI") == "true" and report.outcome == "skipped" and not hasattr(report, "wasxfail"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        report.outcome, report.longrepr = "failed", f"this machine should be whole (CI=true): {why}"
