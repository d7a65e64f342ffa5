"""The local backend on another kernel, where every cgroup controller is on version 2."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sandlot.daemon_binary import find_daemon
from tests.guest import machine

CHECKS = "root and (memory_limit or whole_tree or process_limit)"
HERE = Path(__file__).parents[2]


@pytest.mark.timeout(600)
def test_limits_and_kill_trees_hold_on_cgroup_v2() -> None:
    """Memory, process and tree limits of the shared suite hold on Linux 6.1 with cgroup v2, as root in a guest."""
    environment = {
        "PATH": os.defpath,
        "HOME": "/root",
        "PYTHONPATH": str(HERE / "src"),
        "SANDLOT_DAEMON": str(find_daemon()),
        "SANDLOT_TEST_SCRATCH": "/mnt",
        "SANDLOT_TEST_CACHE": str(machine.tests_cache()),
    }
    suite = f"{sys.executable} -m pytest -p no:cacheprovider -q --color=no --tb=short --timeout=300"
    command = f'cd {HERE} && {suite} tests/conformance/test_ending.py -k "{CHECKS}"'
    try:
        finished = machine.run(command, environment, seconds=540)
    except machine.Missing as missing:
        pytest.skip(str(missing))
    assert finished.code == 0, finished.output
    assert "3 passed" in finished.output
