"""How commands end: codes, signals, time limits, memory, and the whole tree with them."""

from __future__ import annotations

import asyncio
import signal

import pytest

from sandlot import errors
from sandlot.testing.conformance import MakeBox, count, until

SLEEPS = "[s]leep 98765"


@pytest.mark.parametrize("code", [0, 1, 2, 77, 124, 126, 127, 128, 137, 254, 255])
async def test_exit_codes_pass_unchanged(make_box: MakeBox, code: int) -> None:
    """Whatever the command's code, it is the code; none is taken for a time-out, a signal or a fault."""
    box = await make_box()
    result = await box.exec(f"exit {code}")
    assert (result.code, result.signal, result.timed_out) == (code, None, False)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT, signal.SIGPIPE])
async def test_death_by_signal_is_told_apart_from_a_code(make_box: MakeBox, number: signal.Signals) -> None:
    """A process that a signal ended has that signal and no code; the shell's spelling is 128 + signal."""
    box = await make_box()
    result = await box.exec(f"kill -{int(number)} $$")
    assert (result.code, result.signal) == (None, int(number))
    assert result.exit_code == 128 + number


async def test_missing_command_is_127_with_a_message(make_box: MakeBox) -> None:
    """argv[0] that is nowhere: 127 and words on standard error, as a shell would say."""
    box = await make_box()
    result = await box.exec(["no-such-command-here", "x"])
    assert result.exit_code == 127
    assert "no-such-command-here" in result.stderr


@pytest.mark.parametrize("make", ["echo data > /tmp/f", "mkdir /tmp/f", "printf '\\177ELF broken' > /tmp/f; chmod 755 /tmp/f"])
async def test_not_executable_is_126_with_a_message(make_box: MakeBox, make: str) -> None:
    """A plain file, a directory, a broken binary: 126 and words on standard error."""
    box = await make_box()
    await box.exec(make, check=True)
    result = await box.exec(["/tmp/f"])
    assert result.exit_code == 126
    assert "/tmp/f" in result.stderr


async def test_time_limit_returns_soon_and_kills_the_whole_tree(make_box: MakeBox) -> None:
    """Children, `setsid` children and double forks are gone when the call returns."""
    box = await make_box()
    script = "sleep 98765 & setsid sleep 98765 & (sleep 98765 &) ; setsid sh -c 'setsid sleep 98765 & exit' ; sleep 98765"
    async with asyncio.timeout(30):
        result = await box.exec(script, timeout=1)
    assert result.timed_out
    assert result.exit_code == 128 + signal.SIGKILL
    assert await count(box, SLEEPS) == 0


async def test_busy_forking_children_die_with_the_time_limit(make_box: MakeBox) -> None:
    """Children that burn CPU and fork while being killed leave nothing."""
    box = await make_box(pids=200)
    script = "loop() { while :; do (sleep 98765 &) ; sleep 0.01; done; }; loop & loop & (loop &) ; sleep 98765"
    result = await box.exec(script, timeout=1)
    assert result.timed_out
    assert await count(box, SLEEPS) == 0


async def test_orphan_with_the_pipe_does_not_outlast_the_time_limit(make_box: MakeBox) -> None:
    """A limit counts though an orphan holds the output pipe."""
    box = await make_box()
    async with asyncio.timeout(30):
        result = await box.exec("sleep 98765 & sleep 98765", timeout=1)
    assert result.timed_out
    assert await count(box, SLEEPS) == 0


async def test_kill_leader_spares_the_children(make_box: MakeBox) -> None:
    """With kill="leader" only the first process is killed at the limit."""
    box = await make_box()
    result = await box.exec("sleep 98765 & sleep 300", timeout=1, kill="leader")
    assert result.timed_out
    assert await count(box, SLEEPS) == 1


async def test_command_that_ignores_signals_still_ends_at_its_limit(make_box: MakeBox) -> None:
    """Traps and ignored signals make no difference."""
    box = await make_box()
    result = await box.exec("trap '' TERM INT HUP QUIT; while :; do sleep 1; done", timeout=1)
    assert result.timed_out


async def test_own_limit_needs_no_timeout_program_in_the_image(make_box: MakeBox) -> None:
    """An image with one static binary and no shell gets the same time limit."""
    box = await make_box("static")
    result = await box.exec(["tool", "sleep", "300"], timeout=1)
    assert result.timed_out


async def test_fast_command_under_a_limit_is_not_timed_out(make_box: MakeBox) -> None:
    """A limit that is not reached leaves no trace, also for code 124 and a late child."""
    box = await make_box()
    result = await box.exec("sleep 300 & exit 124", timeout=60)
    assert (result.timed_out, result.exit_code) == (False, 124)


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf")])
async def test_impossible_time_limits_are_refused(make_box: MakeBox, limit: float) -> None:
    """Zero, negative and not-a-number limits are the caller's mistake; no command runs."""
    box = await make_box()
    with pytest.raises(errors.BadRequest):
        await box.exec("touch /tmp/ran", timeout=limit)
    assert not await box.exists("/tmp/ran")


async def test_cancelled_call_kills_its_command(make_box: MakeBox) -> None:
    """Cancelling the awaiting task ends the tree; the sandbox answers on."""
    box = await make_box()
    call = asyncio.create_task(box.exec("echo up > /tmp/up; sleep 98765 & sleep 98765"))
    await until(lambda: box.exists("/tmp/up"))
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call

    async def none_left() -> bool:
        return await count(box, SLEEPS) == 0

    await until(none_left)


async def test_two_thousand_orphans_leave_no_zombie(make_box: MakeBox) -> None:
    """Somebody reaps: orphans that end are gone from the process table."""
    box = await make_box()
    await box.exec("i=0; while [ $i -lt 2000 ]; do (sleep 0.01 &) ; i=$((i+1)); done", check=True)

    async def no_zombie() -> bool:
        return (await box.exec("ps -o stat,comm | grep -c '^Z' || true")).stdout == "0\n"

    await until(no_zombie)


@pytest.mark.parametrize("user", [None, "nobody"])
async def test_kill_all_from_inside_spares_the_daemon(make_box: MakeBox, user: str | None) -> None:
    """`kill -9 -1` and killing by name end the agent's own processes only; the next command runs."""
    box = await make_box()
    await box.exec("kill -9 -1", user=user)
    await box.exec("killall -9 sandlotd; pkill -9 -f sandlotd; kill -9 1", user=user)
    assert (await box.exec("echo alive")).stdout == "alive\n"


async def test_memory_limit_kills_the_command_and_says_so(make_box: MakeBox) -> None:
    """A command over the memory limit is flagged as out of memory; the sandbox lives and the next one is not flagged."""
    box = await make_box(memory="64MiB")
    result = await box.exec("head -c 200000000 /dev/zero | tail > /dev/null; exit 0")
    assert result.oom_killed
    after = await box.exec("echo alive")
    assert (after.stdout, after.oom_killed) == ("alive\n", False)


async def test_sandbox_answers_while_memory_and_processors_are_saturated(make_box: MakeBox) -> None:
    """The daemon stands outside of what the commands may use up."""
    box = await make_box(memory="64MiB", cpu=0.5, pids=256)
    hogs = [asyncio.create_task(box.exec("while :; do :; done")) for _ in range(4)]
    hogs += [asyncio.create_task(box.exec("while :; do head -c 100000000 /dev/zero | tail > /dev/null; done"))]
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        for i in range(5):
            assert (await box.exec(f"exit {i}")).exit_code == i
    for hog in hogs:
        hog.cancel()
    await asyncio.gather(*hogs, return_exceptions=True)


async def test_process_limit_stops_a_fork_bomb(make_box: MakeBox) -> None:
    """A fork bomb meets its limit, its time limit ends it, and the sandbox answers afterwards."""
    box = await make_box(pids=64)
    result = await box.exec("bomb() { bomb | bomb & }; bomb; sleep 300", timeout=2)
    assert result.timed_out
    async with asyncio.timeout(30):
        assert (await box.exec("echo alive")).stdout == "alive\n"


async def test_usage_of_a_command_is_measured(make_box: MakeBox) -> None:
    """CPU time, wall time and peak memory are those of the command."""
    box = await make_box(memory="256MiB")
    result = await box.exec("i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done; head -c 30000000 /dev/zero | tail > /dev/null")
    assert result.usage.cpu_s > 0.005
    assert result.usage.wall_s >= 0.005
    assert result.usage.peak_memory is not None
    assert result.usage.peak_memory > 10_000_000
