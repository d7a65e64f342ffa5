"""Background jobs, persistent shells, and calls that outlive their connection."""

from __future__ import annotations

import asyncio

import pytest

from sandlot import errors
from sandlot.testing.conformance import MakeBox, until


async def test_job_outlives_the_call_and_is_waited_for(make_box: MakeBox) -> None:
    """start returns at once; wait gives the whole result, also twice, also late."""
    box = await make_box()
    job = await box.start("echo begin; read x; echo got $x; exit 5", stdin_open=True)
    assert (await box.exec("echo other")).stdout == "other\n"
    await job.write_stdin(b"word\n", eof=True)
    result = await job.wait()
    assert (result.stdout, result.exit_code) == ("begin\ngot word\n", 5)
    assert (await job.wait()).exit_code == 5


async def test_job_output_from_any_byte(make_box: MakeBox) -> None:
    """Output is read again from byte N, by any handle that knows the key."""
    box = await make_box()
    job = await box.start("printf 0123456789; sleep 300")
    async for chunk in job.output():
        if chunk.data.endswith(b"9"):
            break
    again = box.job(job.key)
    async for chunk in again.output(out_from=7):
        assert chunk.data == b"789"
        break
    await job.signal(15)
    result = await again.wait()
    assert result.signal == 15


async def test_job_never_waits_for_a_reader(make_box: MakeBox) -> None:
    """A job nobody reads keeps the last bytes up to its cap and goes on; what was dropped is told."""
    box = await make_box()
    job = await box.start("seq 1 300000; echo last", cap=1000)
    result = await job.wait()
    assert result.exit_code == 0
    assert result.stdout_bytes.endswith(b"300000\nlast\n")
    assert result.truncated


async def test_signals_reach_the_tree_or_the_leader(make_box: MakeBox) -> None:
    """TERM to the whole tree lets each process run its trap."""
    box = await make_box()
    child = "trap 'echo child >> /tmp/t; exit' TERM; while :; do sleep 0.1; done"
    await box.write("/tmp/child", child.encode())
    script = "trap 'echo parent >> /tmp/t; exit 3' TERM; sh /tmp/child & echo up; while :; do sleep 0.1; done"
    job = await box.start(script)
    async for chunk in job.output():
        if b"up" in chunk.data:
            break
    await asyncio.sleep(0.3)
    await job.signal(15, to="tree")
    assert (await job.wait()).exit_code == 3

    async def both_told() -> bool:
        return sorted((await box.read("/tmp/t")).split()) == [b"child", b"parent"]

    await until(both_told)


async def test_unknown_job_is_a_typed_error(make_box: MakeBox) -> None:
    """A key nobody started."""
    box = await make_box()
    with pytest.raises(errors.SandlotError):
        await box.job("no-such-key").wait()


async def test_shell_keeps_cwd_variables_functions_and_options(make_box: MakeBox) -> None:
    """State lives from run to run in one shell and in no other call."""
    box = await make_box()
    async with await box.shell() as shell:
        await shell.run("cd /tmp; x=1; export y=2; f() { echo f$1; }")
        result = await shell.run("pwd; echo $x; f 3; sh -c 'echo $y'")
        assert result.stdout.split() == ["/tmp", "1", "f3", "2"]
        assert (await shell.run("(exit 7)")).exit_code == 7
        assert shell.cwd == "/tmp"
    assert (await box.exec("echo ${y-none}")).stdout == "none\n"


@pytest.mark.parametrize("image", ["busybox", "debian"])
@pytest.mark.parametrize(
    "script",
    [
        "if then", "echo 'x", "cat <<E\nnever ended", ")", "f() {", "echo $(", "case x in", "false",
        "cat <<'A'\n" + "x\n" * 5000 + "A", "set -e; false || true",
    ],
)  # fmt: skip
async def test_shell_survives_whatever_it_is_given(make_box: MakeBox, image: str, script: str) -> None:
    """Errors of syntax, endless quotes and long here-documents leave a usable shell with its state."""
    box = await make_box(image)
    async with asyncio.timeout(60):
        async with await box.shell() as shell:
            await shell.run("x=kept")
            await shell.run(script)
            await shell.run("set +e")
            assert (await shell.run("echo $x")).stdout == "kept\n"


async def test_shell_output_cannot_be_mistaken_for_its_end(make_box: MakeBox) -> None:
    """Markers, codes and prompts printed by the command are only output; no newline at the end is needed."""
    box = await make_box()
    async with await box.shell() as shell:
        result = await shell.run("echo 0 0; printf '\\001\\002'; echo __END__ 1 >&2; printf 'no newline'; (exit 4)")
        assert result.stdout == "0 0\n\x01\x02no newline"
        assert result.exit_code == 4


async def test_shell_that_exits_says_so(make_box: MakeBox) -> None:
    """`exit` ends the shell: the code arrives, the handle knows, the next run is a typed error."""
    box = await make_box()
    shell = await box.shell()
    result = await shell.run("echo bye; exit 9")
    assert (result.stdout, result.exit_code) == ("bye\n", 9)
    assert not shell.alive
    with pytest.raises(errors.SandlotError):
        await shell.run("echo more")


async def test_shell_time_limit_ends_the_run_and_keeps_its_output(make_box: MakeBox) -> None:
    """A run over its limit is killed with its children and its output kept; the sandbox goes on."""
    box = await make_box()
    shell = await box.shell()
    result = await shell.run("echo part; sleep 98765", timeout=1)
    assert (result.timed_out, result.stdout) == (True, "part\n")
    assert (await box.exec("ps -o args | grep -c '[s]leep 98765' || true")).stdout == "0\n"
    await shell.close()


async def test_shell_background_jobs_do_not_hold_a_run(make_box: MakeBox) -> None:
    """`&` in a shell returns at once and the job lives on."""
    box = await make_box()
    async with asyncio.timeout(30):
        async with await box.shell() as shell:
            result = await shell.run("sleep 300 & echo started")
            assert result.stdout == "started\n"
            assert (await shell.run("jobs | wc -l")).stdout.strip() == "1"


async def test_terminal_is_a_real_one_when_asked_for(make_box: MakeBox) -> None:
    """With a PTY there is a controlling terminal of the asked size."""
    box = await make_box()
    job = await box.start("test -t 0 && test -t 1 && stty size && read x </dev/tty && echo got $x", pty=(33, 111))
    seen = b""
    async for chunk in job.output():
        seen += chunk.data
        if b"33 111" in seen and b"got" not in seen:
            await job.write_stdin(b"word\n")
    assert b"got word" in seen


async def test_a_broken_link_loses_neither_a_command_nor_its_output(make_box: MakeBox) -> None:
    """The link is cut while a command runs: it ran once and nothing of its output is missing."""
    box = await make_box()
    call = asyncio.create_task(box.exec("echo run >> /tmp/runs; echo before; sleep 1; head -c 3000000 /dev/zero; echo after"))
    await until(lambda: box.exists("/tmp/runs"))
    box.connection.abort()
    result = await call
    assert len(result.stdout_bytes) == 3_000_000 + len("before\nafter\n")
    assert result.stdout_bytes.endswith(b"after\n")
    assert await box.read("/tmp/runs") == b"run\n"


async def test_a_link_cut_again_and_again_runs_nothing_twice(make_box: MakeBox) -> None:
    """Twenty cuts under a stream of counted commands: each ran exactly once and every answer is its own."""
    box = await make_box()

    async def cut() -> None:
        for _ in range(20):
            await asyncio.sleep(0.03)
            box.connection.abort()

    cutter = asyncio.create_task(cut())
    for i in range(100):
        result = await box.exec(f"echo {i} >> /tmp/runs; echo {i}")
        assert result.stdout == f"{i}\n"
    await cutter
    assert (await box.read("/tmp/runs")).split() == [str(i).encode() for i in range(100)]
