"""What happens when a container's memory runs out; `tests/guest/test_pod_memory.py` asks the same of cgroup version 2."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.daemon.containers import Container, Wanted, running

MIB = 1 << 20
VERSION_2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
_ONLY_V2 = pytest.mark.skipif(not VERSION_2, reason="only cgroup version 2 kills in groups; tests/guest has it")
GROUPED = pytest.param(True, marks=[_ONLY_V2, pytest.mark.may_lack])
GROW = "dd if=/dev/zero of=/dev/null bs=150M count=1"
"""Asks for more than twice the memory there is, and fills it as fast as it can."""


@pytest.fixture(params=[False, GROUPED], ids=["one process", "grouped"])
def container(request: pytest.FixtureRequest) -> Iterator[Container]:
    """A container with little memory, in which the kernel kills one process, or all of them at once."""
    with ExitStack() as stack:
        wanted = Wanted(memory_bytes=64 * MIB, oom_group=request.param)
        yield stack.enter_context(running(wanted))


def test_only_the_command_that_holds_most_is_killed(container: Container) -> None:
    """It is said to have run out of memory; the daemon, the link and the other command live on, again and again."""
    box = container.open()
    box.send(t="exec", id=900, key="quiet", mode="job", script=b"exec sleep 1000")
    started = box.receive()
    assert started["t"] == "started"
    for round_ in (1, 2):
        end = box.run(f"exec {GROW}")
        assert (end["oom"], end["signal"]) == (True, 9), end
        assert box.call(t="usage")["oom_kills"] == round_
    end = box.run(f"{GROW}; exit $?")
    assert end["oom"], end
    assert box.run("kill -9 $$")["oom"] is False
    left = box.call(t="processes")["processes"]
    assert [process["name"] for process in left if process["key"] == "quiet"] == [b"sleep"]
    assert b"dd" not in {process["name"] for process in left}
    # It has lived through every one of those kills, and this one is none of them.
    box.run(f"kill -9 {started['pid']}")
    box.send(t="attach", id=901, key="quiet", out_from=0, err_from=0, output=False)
    end = next(message for message in iter(box.receive, None) if message["t"] == "exit")
    assert (end["signal"], end["oom"]) == (9, False), end


def test_a_kill_is_not_that_of_a_command_that_came_later(container: Container) -> None:
    """Also when nobody can tell whose it was: two lived, and neither ended as one that was killed."""
    box = container.open()
    box.send(t="exec", id=900, key="quiet", mode="job", script=b"exec sleep 1000")
    assert box.receive()["t"] == "started"
    box.run(f"{GROW} | cat; true")
    assert box.call(t="usage")["oom_kills"] >= 1
    assert box.run("kill -9 $$")["oom"] is False


def test_a_kill_is_that_of_the_command_that_lived_alone(container: Container) -> None:
    """However its first process ended: the shell of a pipeline says that all is well. The next one has no part in it."""
    box = container.open()
    end = box.run(f"{GROW} | cat; true")
    assert end["oom"], end
    assert box.run("kill -9 $$")["oom"] is False


def test_cached_files_are_no_reason_to_kill(container: Container) -> None:
    """More is written and read than there is memory: the kernel takes the pages back, and nobody is killed."""
    box = container.open()
    end = box.run("head -c 90000000 /dev/zero > /big && wc -c < /big")
    assert (end["code"], end["oom"]) == (0, False), end
    assert end["out"]["d"].strip() == b"90000000"
    assert box.call(t="usage")["oom_kills"] == 0
