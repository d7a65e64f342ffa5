"""The observer counts what is a client's own, and nothing that bears the same number afterwards."""

from __future__ import annotations

import os
import subprocess
import sys

from sandlot.testing.observer import Footprint, footprint

NOTHING: frozenset[str] = frozenset()


def test_a_namespace_whose_number_somebody_else_has_now_is_not_left() -> None:
    """The kernel gives the lowest free number again: this process plays the one that got it."""
    mine = frozenset({os.readlink("/proc/self/ns/user")})
    assert Footprint(frozenset(), mine, NOTHING, NOTHING, NOTHING).left() == {}


def test_a_process_of_ours_is_left_with_its_namespaces_and_children() -> None:
    """Also a child that was born after the footprint was taken."""
    parent = [sys.executable, "-c", "import os, time; input(); os.fork(); print(1, flush=True); time.sleep(600)"]
    with subprocess.Popen(parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True) as one:
        try:
            seen = footprint(os.getpid())
            mark = Footprint(
                frozenset(each for each in seen.processes if each[0] == one.pid),
                frozenset({os.readlink(f"/proc/{one.pid}/ns/user")}),
                NOTHING,
                NOTHING,
                NOTHING,
            )
            assert one.stdin is not None
            assert one.stdout is not None
            one.stdin.write("\n")
            one.stdin.flush()
            assert one.stdout.readline() == "1\n"
            left = mark.left()
            assert len(left["processes"]) == 2
            assert left["namespaces"] == [os.readlink(f"/proc/{one.pid}/ns/user")]
        finally:
            os.killpg(one.pid, 9)
    assert mark.left() == {}
