"""Limits that really hold, and what is told about them."""

from __future__ import annotations

import time

from tests.daemon.conftest import MakeBox
from tests.daemon.wire import Host

MIB = 1 << 20


def test_a_command_over_the_memory_limit_is_killed_and_said_so(make: MakeBox) -> None:
    """The command is flagged, the sandbox lives on, and its usage counts the kill."""
    box = make(limits={"memory_bytes": 128 * MIB})
    end = box.run("exec python3 -c 'x = bytearray(1 << 28)'")
    assert (end["oom"], end["signal"]) == (True, 9), end
    assert box.text("echo alive") == "alive"
    usage = box.call(t="usage")
    assert usage["memory_limit_bytes"] == 128 * MIB
    assert usage["oom_kills"] >= 1
    assert box.run("true")["oom"] is False


def test_files_in_the_upper_count_as_memory(make: MakeBox) -> None:
    """A tmpfs upper cannot be used to get around the memory limit."""
    box = make(limits={"memory_bytes": 64 * MIB})
    end = box.run("head -c 200000000 /dev/zero > /big")
    assert end["oom"] or end["code"] != 0
    assert box.call(t="reset")["verified"]["files"]
    assert box.text("echo alive") == "alive"


def test_peak_memory_is_the_commands_own(make: MakeBox) -> None:
    """What an earlier command used or wrote does not count again."""
    box = make(limits={"memory_bytes": 512 * MIB})
    box.run("head -c 100000000 /dev/zero > /big")
    large = box.run("python3 -c 'x = bytearray(1 << 26)'")["peak_bytes"]
    small = box.run("sleep 0.01; true")["peak_bytes"]
    assert 64 * MIB <= large < 100 * MIB
    assert small < 16 * MIB


def test_no_more_processes_than_allowed(make: MakeBox) -> None:
    """A fork bomb stops at the limit, ends with its command, and a new command still runs."""
    box = make(limits={"pids": 50})
    end = box.run("i=0; while [ $i -lt 200 ]; do sleep 100 & i=$((i+1)); done; echo done", timeout_ms=10_000)
    assert end["code"] != 0 or b"done" not in end["out"]["d"]
    assert box.call(t="quiesce", how="kill")["t"] == "ok"
    box.run("bomb() { bomb | bomb & }; bomb; sleep 100", timeout_ms=1_000, kill="tree")
    assert box.call(t="usage")["pids_limit"] == 50
    assert box.call(t="quiesce", how="kill")["t"] == "ok"
    assert box.text("echo alive") == "alive"


def test_processor_time_is_limited(make: MakeBox) -> None:
    """A quota of a fifth of a processor lets no more than that be used, within scheduling's grain."""
    box = make(limits={"cpu_millis": 200})
    end = box.run("timeout 2 sh -c 'while :; do :; done'; true")
    used_s = (end["user_us"] + end["sys_us"]) / 1e6
    assert used_s < 0.2 * (end["wall_us"] / 1e6) + 0.3, end
    assert box.call(t="usage")["cpu_limit_millis"] == 200


def test_a_sandbox_that_has_used_up_everything_still_answers(make: MakeBox) -> None:
    """Memory, processes and processor at their limits: the daemon is outside of them."""
    box = make(limits={"memory_bytes": 64 * MIB, "pids": 32, "cpu_millis": 100})
    box.run("for i in 1 2 3 4; do sh -c 'while :; do :; done' & done; i=0; while [ $i -lt 60 ]; do sleep 60 & i=$((i+1)); done")
    start = time.monotonic()
    assert box.call(t="ping")["t"] == "pong"
    assert box.call(t="usage")["t"] == "ok"
    assert time.monotonic() - start < 5
    assert box.call(t="quiesce", how="kill")["t"] == "ok"
    assert box.text("echo alive", timeout_ms=20_000) == "alive"


def test_killing_a_command_takes_its_whole_tree(make: MakeBox) -> None:
    """Children that have left its session and its parents are found all the same."""
    box = make()
    script = "setsid sleep 300 & (setsid sh -c 'sleep 301 & sleep 302' &) ; sleep 303"
    assert box.run(script, timeout_ms=300, kill="tree")["timed_out"]
    assert box.text("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'slee[p] 30'") == "0"


def test_what_is_enforced_is_what_was_asked_for(host: Host, make: MakeBox) -> None:
    """Here everything can be; nothing is named as not enforced."""
    box = make(limits={"memory_bytes": 64 * MIB, "pids": 64, "cpu_millis": 1000})
    assert box.created["unenforced"] == []
    facts = host.ask(t="probe")["facts"]
    assert {facts[f"cgroup_{name}"] for name in ("memory", "pids", "cpu")} == {"enforced"}
