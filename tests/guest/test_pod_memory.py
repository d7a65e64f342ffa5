"""The daemon in a container on another kernel, where one process out of memory takes all of its container with it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from sandlot.daemon_binary import find_daemon
from tests.daemon.containers import unpacked
from tests.guest import machine

HERE = Path(__file__).parents[2]


@pytest.mark.timeout(1500)
def test_a_container_survives_a_command_that_runs_out_of_memory() -> None:
    """With `memory.oom.group` as a kubelet sets it, and without, on Linux 6.1 with cgroup v2."""
    unpacked("busybox")
    environment = {
        "PATH": os.defpath + ":/usr/sbin:/sbin",
        "HOME": "/root",
        "PYTHONPATH": str(HERE / "src"),
        "SANDLOT_DAEMON": str(find_daemon()),
        "SANDLOT_TEST_SCRATCH": "/mnt",
        "SANDLOT_TEST_CACHE": str(machine.tests_cache()),
    }
    suite = f"{sys.executable} -m pytest -p no:cacheprovider -q -x --color=no --tb=short --timeout=600"
    try:
        finished = machine.run(f"cd {HERE} && {suite} tests/daemon/test_pod_memory.py", environment, seconds=1400)
    except machine.Missing as missing:
        pytest.skip(str(missing))
    assert finished.code == 0, finished.output
    assert "8 passed" in finished.output
