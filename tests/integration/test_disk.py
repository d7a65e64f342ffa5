"""Uppers on disk: where they lie, and that nothing of them stays."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import sandlot
from sandlot.backends.local import LocalBackend
from sandlot.spec import Spec

SPEC = Spec(image="host", upper="disk", limits="best-effort")


def uppers(cache: Path) -> list[Path]:
    """What lies in the directories of hosts, by sandbox."""
    return list((cache / "disk").glob("*/*"))


async def test_an_upper_on_disk_lies_below_the_cache_and_goes_with_its_sandbox(cache: Path) -> None:
    """Not in the runtime directory, which is in memory on most machines."""
    async with sandlot.local(cache=cache) as provider:
        async with await provider.create(SPEC) as box:
            assert (await box.exec("head -c 1000000 /dev/zero > /root/big")).ok
            assert len(uppers(cache)) == 1
            assert (await box.exec("df --output=fstype /root | tail -1")).stdout.strip() == "overlay"
        deadline = time.monotonic() + 10
        while uppers(cache):  # removed beside the loop, after the sandbox is gone
            assert time.monotonic() < deadline
    assert list((cache / "disk").iterdir()) == []


async def test_a_sandbox_with_an_upper_on_disk_is_reset(cache: Path) -> None:
    """What it wrote is gone; how much that was is not known."""
    async with sandlot.local(cache=cache) as provider, await provider.create(SPEC) as box:
        assert (await box.exec("echo 1 > /root/f")).ok
        report = await box.reset()
        assert (report.clean, report.changed_bytes) == (True, None)
        assert (await box.exec("ls /root/f")).exit_code != 0


async def test_a_killed_host_leaves_no_upper(cache: Path) -> None:
    """Its warden removes them."""
    backend = LocalBackend(cache=cache)
    async with sandlot.Provider(backend) as provider:
        box = await provider.create(SPEC)
        assert (await box.exec("echo 1 > /root/f")).ok
        os.kill(backend.host_pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while list((cache / "disk").iterdir()):
            assert time.monotonic() < deadline
