"""For all tests."""

import asyncio
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import calc
from tests.whole import pytest_make_collect_report, pytest_runtest_makereport

__all__ = ["pytest_make_collect_report", "pytest_runtest_makereport"]

# The shared suite's asserts explain themselves like those of test files; it must be said before anything imports them.
pytest.register_assert_rewrite("sandlot.testing.conformance")

# How long an example takes says how busy the machine is, and nothing of what is tested.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

# pytest-asyncio asks for the current event loop before it brings its own. Up to Python 3.13 the answer is a new loop
# that nobody closes, unless it has been said that there is none.
asyncio.set_event_loop(None)


# A shell that runs a script starts its background jobs with interrupts ignored, and every process that a test starts would
# inherit that, also one that is to be interrupted.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those that take minutes are for `make test-full`."""
    if os.environ.get("SANDLOT_TEST_FULL") == "1":
        return
    apart = [item for item in items if item.get_closest_marker("full") is not None]
    if apart:
        config.hook.pytest_deselected(items=apart)
        items[:] = [item for item in items if item.get_closest_marker("full") is None]


class _AtOnce:
    """Tells each failure when it happens, so that a run that is cut off has told them, too."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._terminal.ensure_newline()
            self._terminal.write_line(f"{report.nodeid}, {report.when}, after {report.duration:.1f} s:")
            self._terminal.write_line(report.longreprtext)


def pytest_sessionstart(session: pytest.Session) -> None:
    terminal = session.config.pluginmanager.get_plugin("terminalreporter")
    if isinstance(terminal, pytest.TerminalReporter):
        session.config.pluginmanager.register(_AtOnce(terminal), "failures-at-once")


@pytest.fixture(scope="session")
def calc_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small task's tree and environment (`tests/calc.py`)."""
    python = calc.system_python()
    if python is None:
        pytest.skip("this machine's system has no Python")
    top = tmp_path_factory.mktemp("layer")
    calc.make_layer(top, python)
    return top
