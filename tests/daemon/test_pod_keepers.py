"""Keepers: the processes between the daemon and commands whose trees no cgroup can hold. Commands share a container with
them, and may stop or kill them."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from tests.daemon.containers import Wanted, running
from tests.daemon.wire import Box, Message

KEEPERS = "grep -l 'sandlotd keeper' /proc/[0-9]*/comm | cut -d/ -f3"
_numbers = itertools.count()


@pytest.fixture
def box() -> Iterator[Box]:
    with running(Wanted(cwd="/tmp")) as container:
        yield container.open()


def _vector(box: Box, *argv: str, **more: Any) -> Message:
    """A command from an argument vector, to its end."""
    return box.call(t="exec", key=f"vector-{next(_numbers)}", argv=[one.encode() for one in argv], **more)


def _said(end: Message) -> str:
    assert end["t"] == "exit", end
    out: str = end["out"]["d"].decode()
    return out.strip()


def _keepers(box: Box) -> set[int]:
    return {int(pid) for pid in box.text(KEEPERS).split()}


def test_commands_one_after_the_other_share_few_keepers(box: Box) -> None:
    """A keeper that has nobody left keeps the next command, scripts and argument vectors alike."""
    parents = Counter(box.text("echo $PPID") for _ in range(40))
    parents.update(_said(_vector(box, "sh", "-c", "echo $PPID")) for _ in range(40))
    assert len(parents) <= 8
    assert max(parents.values()) >= 10


def test_a_keeper_with_somebody_left_keeps_nobody_else(box: Box) -> None:
    """What a command leaves behind stays apart from later commands: these end alone, and it ends when it is told."""
    left = box.text("sleep 1000 >/dev/null 2>&1 & echo $PPID; echo $!").split()
    assert left[0] not in {box.text("echo $PPID") for _ in range(10)}
    assert _vector(box, "sh", "-c", "sleep 1000 & wait", timeout_ms=100)["timed_out"]
    assert box.code(f"kill -0 {left[1]}") == 0
    assert box.code(f"kill {left[1]}") == 0


def test_keepers_that_were_killed_or_stopped_are_in_nobodys_way(box: Box) -> None:
    """While they wait for a command as well as while they keep this one."""
    for signal in ("KILL", "STOP"):
        for number in range(5):
            box.run(f"kill -{signal} $({KEEPERS})")
            assert box.text(f"echo {number}") == str(number)
            assert _said(_vector(box, "echo", str(number))) == str(number)


def test_arguments_of_any_length_reach_a_command(box: Box) -> None:
    """An order to a keeper may be longer than what a socket holds."""
    long = ["x" * 100_000 for _ in range(10)]
    assert _said(_vector(box, "sh", "-c", "echo $#", "sh", *long)) == "10"


def test_a_reset_leaves_no_keeper_of_before(box: Box) -> None:
    """A keeper is as its daemon was when it was made: what is made anew for an episode must be new for it, too."""
    box.text("true")
    before = _keepers(box)
    done = box.call(t="reset")
    assert (done["t"], done["killed"]) == ("ok", 0), "they are nobody's loss"
    assert box.text("pwd") == "/tmp"
    assert not before & _keepers(box)
