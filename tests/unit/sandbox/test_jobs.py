"""Jobs and shells over a daemon that does what the test says."""

from __future__ import annotations

import asyncio

import pytest

from sandlot import errors
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.sandbox import Job, Sandbox, Shell
from sandlot.testing.scripted import ScriptedDaemon

pytestmark = pytest.mark.looptime


@pytest.fixture
async def box(daemon: ScriptedDaemon) -> Sandbox:
    """A sandbox behind the scripted daemon."""
    return Sandbox(await daemon.connect(), name="box", reopen=daemon.connect)


@pytest.fixture
async def job(daemon: ScriptedDaemon, box: Sandbox) -> Job:
    """A job named `job`, just started."""
    call = asyncio.create_task(box.start("serve", key="job", stdin_open=True, cap=4))
    request = await daemon.next(r.Exec)
    assert (request.mode, request.key) == ("job", "job")
    daemon.send(a.Started(request.id, 42))
    return await call


async def attached(daemon: ScriptedDaemon, stdin_at: int = 0) -> r.Attach:
    """The next attach, with the word on where standard input goes on."""
    request = await daemon.next(r.Attach)
    daemon.send(r.Ack(request.id, 0, stdin_at))
    return request


# --- jobs ----------------------------------------------------------------------------------------------------------------
async def test_start_returns_with_the_process(job: Job) -> None:
    """Not with its end."""
    assert (job.key, job.pid) == ("job", 42)


async def test_output_from_any_byte_until_the_end(daemon: ScriptedDaemon, job: Job) -> None:
    """What the ring has dropped is told, never skipped silently."""
    chunks: list[object] = []

    async def read() -> None:
        chunks.extend([(c.stream, c.offset, c.data, c.missing_bytes) async for c in job.output(10, 20)])

    reading = asyncio.create_task(read())
    request = await attached(daemon)
    assert (request.out_from, request.err_from, request.output) == (10, 20, True)
    end = a.Exit(request.id, code=0, out=a.Kept(33, 33), err=a.Kept(20, 20))
    daemon.send(a.Gap(request.id, 1, 10, 30), a.Out(request.id, 1, 30, b"abc"), end)
    await reading
    assert chunks == [("stdout", 10, b"", 20), ("stdout", 30, b"abc", 0)]


async def test_wait_fetches_the_tail_of_the_output_once(daemon: ScriptedDaemon, job: Job) -> None:
    """After the end, bounded by the cap; the second wait asks nobody."""
    waiting = asyncio.create_task(job.wait())
    request = await attached(daemon)
    assert not request.output
    daemon.send(a.Exit(request.id, code=5, out=a.Kept(9, 9), err=a.Kept(1, 1)))
    request = await attached(daemon)
    assert request.output
    daemon.send(
        a.Gap(request.id, 1, 0, 3), a.Out(request.id, 1, 3, b"abc"), a.Out(request.id, 1, 6, b"def"),
        a.Out(request.id, 2, 0, b"e"), a.Exit(request.id, code=5, out=a.Kept(9, 9), err=a.Kept(1, 1)),
    )  # fmt: skip
    result = await waiting
    assert (result.exit_code, result.stdout_bytes, result.out.total_bytes, result.stderr) == (5, b"cdef", 9, "e")
    assert await job.wait() is result


async def test_reader_and_waiter_share_one_call(daemon: ScriptedDaemon, job: Job) -> None:
    """Waiting does not take the output away from a reader of the same handle."""
    data: list[bytes] = []

    async def read() -> None:
        data.extend([chunk.data async for chunk in job.output()])

    reading = asyncio.create_task(read())
    request = await attached(daemon)
    waiting = asyncio.create_task(job.wait())
    await asyncio.sleep(0.1)
    assert daemon.received == []
    daemon.send(a.Out(request.id, 1, 0, b"abc"), a.Exit(request.id, code=0, out=a.Kept(3, 3)))
    await reading
    collecting = await attached(daemon)
    daemon.send(a.Out(collecting.id, 1, 0, b"abc"), a.Exit(collecting.id, code=0, out=a.Kept(3, 3)))
    assert (await waiting).stdout == "abc"
    assert data == [b"abc"]


async def test_reader_that_comes_later_moves_the_waiter_along(daemon: ScriptedDaemon, job: Job) -> None:
    """The former call ends as moved, and the waiter hears the exit in the new one."""
    waiting = asyncio.create_task(job.wait())
    first = await attached(daemon)
    reading = asyncio.ensure_future(anext(job.output()))
    second = await attached(daemon)
    daemon.send(a.Error(first.id, "moved"), a.Out(second.id, 1, 0, b"x"))
    assert (await reading).data == b"x"
    await asyncio.sleep(0.1)
    assert not waiting.done()
    daemon.send(a.Exit(second.id, code=0, out=a.Kept(1, 1)))
    collecting = await attached(daemon)
    daemon.send(a.Out(collecting.id, 1, 0, b"x"), a.Exit(collecting.id, code=0, out=a.Kept(1, 1)))
    assert (await waiting).stdout == "x"


async def test_waiter_goes_on_when_the_reader_leaves(daemon: ScriptedDaemon, job: Job) -> None:
    """Leaving a loop over the output neither stops the job nor loses its end."""
    output = job.output()
    first_chunk = asyncio.ensure_future(anext(output))
    first = await attached(daemon)
    waiting = asyncio.create_task(job.wait())
    daemon.send(a.Out(first.id, 1, 0, b"x"))
    await first_chunk
    await output.aclose()
    second = await attached(daemon)
    assert not second.output
    daemon.send(a.Error(first.id, "moved"), a.Exit(second.id, code=0, out=a.Kept(1, 1)))
    third = await attached(daemon)
    daemon.send(a.Out(third.id, 1, 0, b"x"), a.Exit(third.id, code=0, out=a.Kept(1, 1)))
    assert (await waiting).ok
    assert [type(message) for message in daemon.received if isinstance(message, r.Cancel)] == []


async def test_handle_that_is_taken_over_by_another_says_so(daemon: ScriptedDaemon, job: Job) -> None:
    """Closed, instead of two handles that take the job from each other for ever."""
    waiting = asyncio.create_task(job.wait())
    request = await attached(daemon)
    daemon.send(a.Error(request.id, "moved"))
    with pytest.raises(errors.Closed):
        await waiting


async def test_standard_input_goes_on_where_the_job_has_it(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """Also from a handle that was found by the key."""
    job = box.job("job")
    writing = asyncio.create_task(job.write_stdin("more", eof=True))
    request = await attached(daemon, stdin_at=100)
    assert await daemon.next(r.Stdin) == r.Stdin(request.id, "job", 100, b"more", eof=True)
    await writing


async def test_two_writers_of_one_handle_do_not_mix(daemon: ScriptedDaemon, job: Job) -> None:
    """Each call's data stays together."""
    writing = asyncio.gather(*(job.write_stdin(bytes([65 + i]) * 300_000) for i in range(3)))
    request = await attached(daemon)
    got = b""
    while len(got) < 900_000:
        part = await daemon.next(r.Stdin)
        got += part.d
        daemon.send(r.Ack(request.id, 0, len(got)))
    await writing
    assert got == b"A" * 300_000 + b"B" * 300_000 + b"C" * 300_000


async def test_input_for_a_job_that_has_ended_is_no_error(daemon: ScriptedDaemon, job: Job) -> None:
    """As with a pipe whose reader is gone, its end is what is told."""
    writing = asyncio.create_task(job.write_stdin(b"x"))
    request = await daemon.next(r.Attach)
    daemon.send(a.Exit(request.id, code=0))
    await writing


async def test_unknown_key_is_the_callers_mistake(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """It shows at the first call."""
    waiting = asyncio.create_task(box.job("nobody").wait())
    request = await daemon.next(r.Attach)
    daemon.send(a.Error(request.id, "no_such_key"))
    with pytest.raises(errors.BadRequest):
        await waiting


@pytest.mark.parametrize("key", ["", "k" * 65])
async def test_impossible_keys_are_refused(box: Sandbox, key: str) -> None:
    """One to sixty-four characters."""
    with pytest.raises(errors.BadRequest):
        await box.start("x", key=key)


async def test_results_of_many_jobs_are_forgotten_in_time(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """The daemon keeps a bounded number, so the oldest are given up before it has to refuse commands."""
    for number in range(300):
        job = box.job(f"job{number}")
        waiting = asyncio.create_task(job.wait())
        for _ in range(2):
            request = await attached(daemon)
            daemon.send(a.Exit(request.id, code=0))
        await waiting
    await asyncio.sleep(0.1)
    forgotten = [message.keys for message in daemon.received if isinstance(message, r.Forget)]
    assert forgotten[:2] == [("job0",), ("job1",)]
    assert len(forgotten) == 300 - 256


# --- shells ----------------------------------------------------------------------------------------------------------------
@pytest.fixture
async def shell(daemon: ScriptedDaemon, box: Sandbox) -> Shell:
    """A shell, just opened."""
    opening = asyncio.create_task(box.shell(cwd="/repo", env={"A": "1"}))
    request = await daemon.next(r.ShellOpen)
    assert (request.program, request.cwd, request.env) == (None, b"/repo", (b"A=1",))
    daemon.send(a.ShellOk(request.id, 7, b"/bin/bash"))
    return await opening


async def test_shell_knows_where_it_is_and_whether_it_lives(daemon: ScriptedDaemon, shell: Shell) -> None:
    """After each run; a shell that has ended takes no more."""
    call = asyncio.create_task(shell.run("cd /tmp; exit 3"))
    request = await daemon.next(r.ShellRun)
    assert request.shell == shell.key
    daemon.send(a.Exit(request.id, code=3, cwd=b"/tmp", alive=False))
    assert (await call).exit_code == 3
    assert (shell.cwd, shell.alive) == ("/tmp", False)
    with pytest.raises(errors.Closed):
        await shell.run("x")
    await shell.close()


async def test_runs_take_turns(daemon: ScriptedDaemon, shell: Shell) -> None:
    """The second is sent when the first has ended."""
    calls = [asyncio.create_task(shell.run(f"echo {i}")) for i in range(2)]
    first = await daemon.next(r.ShellRun)
    await asyncio.sleep(0.1)
    assert daemon.received == []
    daemon.send(a.Exit(first.id, code=0, alive=True))
    second = await daemon.next(r.ShellRun)
    assert (first.script, second.script) == (b"echo 0", b"echo 1")
    assert first.key != second.key
    daemon.send(a.Exit(second.id, code=0, alive=True))
    await asyncio.gather(*calls)


async def test_cancelled_run_gives_its_turn_on(daemon: ScriptedDaemon, shell: Shell) -> None:
    """The run is cancelled inside, the next one is sent."""
    victim = asyncio.create_task(shell.run("sleep 100"))
    first = await daemon.next(r.ShellRun)
    victim.cancel()
    await asyncio.wait([victim])
    assert (await daemon.next(r.Cancel)).id == first.id
    call = asyncio.create_task(shell.run("echo"))
    second = await daemon.next(r.ShellRun)
    daemon.send(a.Exit(first.id, signal=9, alive=True), a.Exit(second.id, code=0, alive=True))
    assert (await call).ok


async def test_closing_a_shell_that_is_gone_is_fine(daemon: ScriptedDaemon, shell: Shell) -> None:
    """A reset or quiesce was quicker."""
    closing = asyncio.create_task(shell.close())
    request = await daemon.next(r.ShellClose)
    daemon.send(a.Error(request.id, "no_such_key"))
    await closing
