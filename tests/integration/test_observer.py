"""The observer from outside itself: it sees what is there, each kind of it, and not what was there before."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path

import pytest

from sandlot.testing.observer import Footprint, footprint

PATIENCE_S = 60.0
KINDS = [field.name for field in fields(Footprint)]
NOTHING = Footprint(*(frozenset() for _ in KINDS))


def until(condition: Callable[[], bool], what: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, f"waited in vain for {what}"
        time.sleep(0.01)


def test_what_was_there_before_is_taken_away_kind_by_kind() -> None:
    """And nothing else is."""
    both = Footprint(*(frozenset({f"{kind} of others", f"{kind} of its own"}) for kind in KINDS))  # type: ignore[arg-type]
    others = Footprint(*(frozenset({f"{kind} of others", "gone since"}) for kind in KINDS))  # type: ignore[arg-type]
    left = both.without(others)
    assert [getattr(left, kind) for kind in KINDS] == [{f"{kind} of its own"} for kind in KINDS]


def test_a_child_is_seen_with_its_namespace_until_it_has_ended() -> None:
    """One that was there before is not, though it lives on."""
    with subprocess.Popen(["sleep", "1000"]) as other, subprocess.Popen(["sleep", "1000"]) as same:
        others = footprint(os.getpid())
        assert {other.pid, same.pid} <= {pid for pid, _ in others.processes}
        with subprocess.Popen(["unshare", "--uts", "sleep", "1000"]) as child:
            try:
                uts = Path(f"/proc/{child.pid}/ns/uts")
                until(lambda: os.readlink(uts) != os.readlink("/proc/self/ns/uts"), "its namespace")
                mark = footprint(os.getpid()).without(others)
                assert {pid for pid, _ in mark.processes} == {child.pid}
                assert mark.namespaces == {os.readlink(uts)}
                assert mark.left() == {"processes": [str(child.pid)], "namespaces": [os.readlink(uts)]}
                assert mark.wait_until_nothing_is_left(0.0)
                child.kill()
                child.wait()
                assert mark.wait_until_nothing_is_left(PATIENCE_S) == {}
            finally:
                for one in (child, other, same):
                    one.kill()


@pytest.mark.parametrize("kind", ["directories", "cgroups"])
def test_a_directory_is_seen_until_it_is_gone(tmp_path: Path, kind: str) -> None:
    """Of files, or one of the kernel's."""
    path = str(tmp_path / "one")
    os.mkdir(path)
    mark = replace(NOTHING, **{kind: frozenset({path})})  # type: ignore[arg-type]
    assert mark.left() == {kind: [path]}
    os.rmdir(path)
    assert mark.left() == {}


def test_a_mount_is_seen_until_it_is_gone(tmp_path: Path) -> None:
    """A directory that only stands where it was is none."""
    mark = replace(NOTHING, mounts=frozenset({str(tmp_path)}))
    assert mark.left() == {}
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path], check=True)
    try:
        assert mark.left() == {"mounts": [str(tmp_path)]}
    finally:
        subprocess.run(["umount", tmp_path], check=True)
    assert mark.left() == {}
