"""What an observer outside of every sandbox can count: what a host may not leave behind."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def cgroups(host: str) -> list[str]:
    """Directories of a host's cgroups, in every hierarchy."""
    return [path for path, _, _ in os.walk(CGROUPS) if f"sandlot-{host}" in path]


def processes(text: str) -> list[int]:
    """Processes whose command line has this text."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                if text.encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
            except OSError:
                continue  # it is gone
    return found


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until(holds: Callable[[], bool], what: str, within_s: float = 20.0) -> None:
    """Look again and again; fails the test when it does not come about."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"not within {within_s:g} s: {what}"
        time.sleep(0.01)
