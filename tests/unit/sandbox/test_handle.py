"""The handle: what goes over the wire for each call, and what callers get; against a daemon that does what the test says."""

from __future__ import annotations

import asyncio
import hashlib

import pytest

from sandlot import errors
from sandlot.limits import COMMAND_GRACE_S, MAX_CHUNK_BYTES
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.sandbox import Record, Sandbox
from sandlot.testing.scripted import ScriptedDaemon

pytestmark = pytest.mark.looptime


@pytest.fixture
async def box(daemon: ScriptedDaemon) -> Sandbox:
    """A sandbox behind the scripted daemon, which lets it back in when the link breaks."""
    return Sandbox(await daemon.connect(), name="box", reopen=daemon.connect)


async def answer(daemon: ScriptedDaemon, code: int = 0, out: bytes = b"", err: bytes = b"") -> r.Exec:
    """Let the next command end."""
    request = await daemon.next(r.Exec)
    kept = [a.Kept(len(data), len(data), len(data), data) for data in (out, err)]
    daemon.send(a.Exit(id=request.id, code=code, out=kept[0], err=kept[1]))
    return request


# --- exec ----------------------------------------------------------------------------------------------------------------
async def test_plain_command_is_a_plain_message(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """Nothing is said that was not asked for."""
    call = asyncio.create_task(box.exec("make"))
    request = await answer(daemon, 2, b"out", b"err")
    result = await call
    assert (result.exit_code, result.stdout, result.stderr) == (2, "out", "err")
    assert request == r.Exec(id=request.id, key=request.key, script=b"make")


async def test_every_argument_reaches_the_daemon(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """The whole exec contract."""
    call = asyncio.create_task(
        box.exec(
            ["prog", "a b"], cwd="sub", env={"A": "1"}, user=1000, stdin="text", timeout=2.5, cap="1KiB", keep="tail",
            merge=True, kill="leader",
        )
    )  # fmt: skip
    request = await answer(daemon)
    await call
    assert request == r.Exec(
        id=request.id, key=request.key, argv=(b"prog", b"a b"), cwd=b"sub", env=(b"A=1",), user="1000", stdin=b"text",
        timeout_ms=2500, cap_out=1024, cap_err=1024, keep="tail", merge=True, kill="leader",
    )  # fmt: skip


async def test_keys_are_never_used_twice_by_any_handle(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """Two handles to one sandbox do not take each other's results."""
    other = Sandbox(box.connection, name="box")
    calls = [asyncio.create_task(handle.exec("x")) for handle in (box, other) for _ in range(50)]
    keys = {(await answer(daemon)).key for _ in calls}
    await asyncio.gather(*calls)
    assert len(keys) == len(calls)


async def test_check_raises_with_the_whole_result(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """And not otherwise."""
    call = asyncio.create_task(box.exec("x", check=True))
    await answer(daemon, 3, b"partial", b"reason\n")
    with pytest.raises(errors.CommandFailed, match="exit code 3: reason") as failed:
        await call
    assert failed.value.result.stdout == "partial"


async def test_daemon_that_never_answers_a_limited_command_is_given_up(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """At the limit and a grace, as an infrastructure error, never as a result."""
    began = asyncio.get_running_loop().time()
    with pytest.raises(errors.DeadlineExceeded):
        await box.exec("sleep 1", timeout=5)
    assert asyncio.get_running_loop().time() - began == pytest.approx(5 + COMMAND_GRACE_S, abs=1)


async def test_command_without_a_limit_has_no_hidden_one(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """Hours are not too long."""
    call = asyncio.create_task(box.exec("train"))
    await asyncio.sleep(3 * 3600)
    assert not call.done()
    await answer(daemon)
    assert (await call).ok


async def test_large_standard_input_follows_in_pieces(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """Under flow control, its end marked."""
    data = bytes(range(256)) * (3 * MAX_CHUNK_BYTES // 256)
    call = asyncio.create_task(box.exec("cat", stdin=data))
    request = await daemon.next(r.Exec)
    assert (request.stdin, request.stdin_open) == (None, True)
    got = b""
    while True:
        part = await daemon.next(r.Stdin)
        assert (part.id, part.key, part.off) == (request.id, request.key, len(got))
        got += part.d
        daemon.send(r.Ack(request.id, 0, len(got)))
        if part.eof:
            break
    daemon.send(a.Exit(id=request.id, code=0))
    await call
    assert got == data


async def test_command_that_ends_before_it_read_its_input_still_ends(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """Nobody waits for acknowledgements that never come."""
    call = asyncio.create_task(box.exec("true", stdin=bytes(20 * MAX_CHUNK_BYTES)))
    await answer(daemon)
    assert (await call).ok


async def test_cancelled_while_feeding_cancels_the_command(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """Also before the wait for the end has begun."""
    call = asyncio.create_task(box.exec("cat", stdin=bytes(20 * MAX_CHUNK_BYTES)))
    request = await daemon.next(r.Exec)
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert (await daemon.next(r.Cancel)).id == request.id


async def test_bad_arguments_send_nothing(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """The caller's mistakes never reach the daemon."""
    for fields in ({"timeout": 0}, {"cap": -1}, {"env": {"": "x"}}, {"cwd": ""}):
        with pytest.raises(errors.BadRequest):
            await box.exec("x", **fields)
    await asyncio.sleep(0.1)
    assert daemon.received == []


# --- streams ---------------------------------------------------------------------------------------------------------------
async def test_stream_gives_chunks_as_they_come_and_then_the_result(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """Before the command has ended."""
    async with box.stream("make") as stream:
        request = await daemon.next(r.Exec)
        assert request.mode == "stream"
        chunks = aiter(stream)
        daemon.send(a.Started(request.id, 7), a.Out(request.id, 1, 0, b"one"))
        first = await anext(chunks)
        assert (first.stream, first.offset, first.text) == ("stdout", 0, "one")
        with pytest.raises(errors.BadRequest):
            _ = stream.result
        end = a.Exit(request.id, code=4, out=a.Kept(3, 3), err=a.Kept(3, 3))
        daemon.send(a.Out(request.id, 2, 0, b"two"), end)
        assert [(chunk.stream, chunk.data) async for chunk in chunks] == [("stderr", b"two")]
        assert (stream.result.exit_code, stream.result.out.total_bytes) == (4, 3)


async def test_leaving_a_stream_early_kills_its_command(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """And only then; leaving after the end says nothing."""
    async with box.stream("yes") as stream:
        request = await daemon.next(r.Exec)
        daemon.send(a.Out(request.id, 1, 0, b"y\n"))
        async for _ in stream:
            break
    assert (await daemon.next(r.Cancel)).id == request.id


async def test_input_of_a_stream_that_has_none_is_refused(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """It would be dropped silently otherwise."""
    async with box.stream("cat") as stream:
        await daemon.next(r.Exec)
        with pytest.raises(errors.BadRequest, match="stdin_open"):
            await stream.write_stdin(b"x")


async def test_terminal_takes_input_and_new_sizes(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """What an interactive shell needs."""
    async with box.stream("sh", pty=(24, 80)) as stream:
        request = await daemon.next(r.Exec)
        assert (request.pty, request.stdin_open) == ((24, 80), True)
        await stream.write_stdin("ls\n")
        assert (await daemon.next(r.Stdin)).d == b"ls\n"
        resizing = asyncio.create_task(stream.resize(50, 200))
        resize = await daemon.next(r.Resize)
        daemon.send(a.Ok(id=resize.id))
        await resizing
        assert (resize.key, resize.rows, resize.cols) == (request.key, 50, 200)
    for size in ((0, 80), (24, 70_000)):
        with pytest.raises(errors.BadRequest):
            box.stream("sh", pty=size)


async def test_chunk_cut_by_a_broken_link_comes_once(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """What the reader had not taken comes again, what it had does not."""
    async with box.stream("make") as stream:
        request = await daemon.next(r.Exec)
        chunks = aiter(stream)
        daemon.send(a.Started(request.id, 7), a.Out(request.id, 1, 0, b"one"), a.Out(request.id, 1, 3, b"two"))
        assert (await anext(chunks)).data == b"one"
        daemon.reset()
        attach = await daemon.next(r.Attach)
        assert (attach.key, attach.out_from) == (request.key, 3)
        daemon.send(r.Ack(attach.id, 0, 0), a.Out(attach.id, 1, 3, b"two"), a.Exit(attach.id, code=0, out=a.Kept(6, 6)))
        assert [chunk.data async for chunk in chunks] == [b"two"]


# --- files -------------------------------------------------------------------------------------------------------------------
async def test_read_joins_its_chunks(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """Bytes as they are."""
    call = asyncio.create_task(box.read("/a", offset=2, limit=10))
    request = await daemon.next(r.Read)
    assert (request.path, request.offset, request.limit) == (b"/a", 2, 10)
    daemon.send(r.Data(request.id, 1, 0, b"ab"), r.Data(request.id, 1, 2, b"c"), a.ReadOk(request.id, 3, 0o644, 1))
    assert await call == b"abc"


async def test_missing_file_is_a_file_not_found_error(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """As a local call would raise it, and one of ours too."""
    call = asyncio.create_task(box.read("/none"))
    request = await daemon.next(r.Read)
    daemon.send(a.Error(request.id, "not_found", "no such file", errno=2, path=b"/none"))
    with pytest.raises(FileNotFoundError) as missing:
        await call
    assert isinstance(missing.value, errors.SandboxFileError)
    assert missing.value.filename == "/none"


async def test_small_write_is_one_message_and_a_large_one_is_streamed(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """Either way the whole content or nothing."""
    call = asyncio.create_task(box.write("/a", "ä", mode=0o600))
    request = await daemon.next(r.Write)
    assert request == r.Write(request.id, b"/a", mode=0o600, d="ä".encode(), eof=True)
    daemon.send(a.WriteOk(request.id, 2))
    await call


async def test_large_write_begins_again_on_a_new_link(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """Nothing of the first try is in place, so the second sends everything."""
    data = bytes(range(256)) * (5 * MAX_CHUNK_BYTES // 256)
    call = asyncio.create_task(box.write("/big", data))
    for attempt in (1, 2):
        request = await daemon.next(r.Write)
        assert (request.d, request.eof) == (b"", False)
        got = b""
        while len(got) < len(data):
            part = await daemon.next(r.Data)
            assert part.off == len(got)
            got += part.d
            daemon.send(r.Ack(request.id, 0, len(got)))
            if attempt == 1 and len(got) > len(data) // 2:
                daemon.reset()
                daemon.received.clear()
                break
    await daemon.next(r.End)
    daemon.send(a.WriteOk(request.id, len(data)))
    await call
    assert got == data


async def test_write_that_fails_halfway_stops_sending(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """A full disk is told, not waited out."""
    call = asyncio.create_task(box.write("/big", bytes(50 * MAX_CHUNK_BYTES)))
    request = await daemon.next(r.Write)
    daemon.send(a.Error(request.id, "no_space", "disk full", errno=28))
    with pytest.raises(errors.SandboxNoSpace):
        await call


async def test_exists_is_false_for_what_cannot_be_there(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """Missing, or below a file; no right to look is an error."""
    for code, outcome in (("not_found", False), ("not_a_directory", False), ("permission", None)):
        call = asyncio.create_task(box.exists("/a/b"))
        request = await daemon.next(r.Stat)
        daemon.send(a.Error(request.id, code))
        if outcome is None:
            with pytest.raises(PermissionError):
                await call
        else:
            assert await call is outcome


async def test_listing_is_sorted_and_never_cut_silently(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """More than the limit is an error."""
    call = asyncio.create_task(box.list("/d"))
    request = await daemon.next(r.ListFiles)
    daemon.send(a.Entries(request.id, (a.Listed(b"b", "dir"), a.Listed(b"a", "link", target=b"x"))), a.ListOk(request.id))
    assert [(entry.name, entry.kind, entry.target) for entry in await call] == [("a", "link", "x"), ("b", "dir", None)]
    call = asyncio.create_task(box.list("/d", limit=1))
    request = await daemon.next(r.ListFiles)
    daemon.send(a.Entries(request.id, (a.Listed(b"b", "dir"),)), a.ListOk(request.id, truncated=True))
    with pytest.raises(errors.SandboxFileError, match="more than 1"):
        await call


# --- the sandbox itself -----------------------------------------------------------------------------------------------
async def test_reset_says_what_is_not_clean(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """A pool deletes such a sandbox."""
    call = asyncio.create_task(box.reset())
    request = await daemon.next(r.Reset)
    verified = a.Verified(processes=True, files=False, mounts=True, ipc=True, hostname=True, network=False)
    daemon.send(a.ResetOk(request.id, verified, killed=3, changed_bytes=10, took_us=900))
    report = await call
    assert (report.clean, report.dirty, report.killed, report.took_s) == (False, ("files", "network"), 3, 0.0009)


async def test_what_is_not_there_yet_is_unsupported(box: Sandbox) -> None:
    """Clear words instead of an attribute error."""
    for call in (box.checkpoint(), box.rollback("mark"), box.fork(2)):
        with pytest.raises(errors.Unsupported):
            await call


async def test_closing_deletes_once_and_every_call_afterwards_says_closed(daemon: ScriptedDaemon) -> None:
    """Closing again, also at the same time, is fine."""
    deleted: list[float] = []

    async def delete(grace_s: float) -> None:
        await asyncio.sleep(1)
        deleted.append(grace_s)

    box = Sandbox(await daemon.connect(), name="box", on_close=delete)
    await asyncio.gather(box.aclose(grace_s=5), box.aclose())
    await box.aclose()
    assert deleted == [5]
    for call in (box.exec("x"), box.read("/a"), box.shell(), box.usage()):
        with pytest.raises(errors.Closed):
            await call


async def test_cancelled_closing_still_deletes(daemon: ScriptedDaemon) -> None:
    """The deletion is not the caller's to interrupt."""
    deleted: list[float] = []

    async def delete(grace_s: float) -> None:
        await asyncio.sleep(1)
        deleted.append(grace_s)

    box = Sandbox(await daemon.connect(), name="box", on_close=delete)
    closing = asyncio.create_task(box.aclose())
    await asyncio.sleep(0.5)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asyncio.sleep(2)
    assert deleted == [0.0]


async def test_commands_under_a_deletion_end_as_gone_not_as_lost(daemon: ScriptedDaemon) -> None:
    """The link breaks because the sandbox was deleted, and nobody tries to reopen it."""

    async def delete(_grace_s: float) -> None:
        daemon.hang_up()
        await asyncio.sleep(1)

    box = Sandbox(await daemon.connect(), name="box", reopen=daemon.connect, on_close=delete)
    call = asyncio.create_task(box.exec("sleep 100"))
    await daemon.next(r.Exec)
    await box.aclose()
    with pytest.raises(errors.SandboxGone) as gone:
        await call
    assert gone.value.why == "killed"
    assert daemon.links == 1


async def test_command_may_end_by_itself_while_its_sandbox_is_being_closed(daemon: ScriptedDaemon) -> None:
    """A grace is worth something: whoever waits gets the result, although the owner takes the handle away meanwhile."""

    async def delete(_grace_s: float) -> None:
        handle.abort(errors.Closed("the owner took it away"))
        await asyncio.sleep(1)
        await answer(daemon, 3, b"told")
        await asyncio.sleep(1)

    handle = Sandbox(await daemon.connect(), name="box", on_close=delete)
    call = asyncio.create_task(handle.exec("trap 'echo told; exit 3' TERM; sleep 100"))
    await asyncio.sleep(0.1)
    await handle.aclose(grace_s=5)
    assert (await call).stdout == "told"


async def test_aborted_handle_says_why(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """A provider that takes a sandbox away tells every caller the reason, each with an error of its own."""
    call = asyncio.create_task(box.exec("sleep 100"))
    await daemon.next(r.Exec)
    box.abort(errors.SandboxGone("evicted", why="evicted"))
    seen = []
    for _ in range(2):
        with pytest.raises(errors.SandboxGone) as gone:
            await box.exec("x")
        seen.append(gone.value)
    with pytest.raises(errors.SandboxGone):
        await call
    assert [error.why for error in seen] == ["evicted", "evicted"]
    assert seen[0] is not seen[1]


# --- recording --------------------------------------------------------------------------------------------------------
class Notes:
    """A recorder that keeps everything."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def record(self, record: Record) -> None:
        self.records.append(record)


async def test_commands_and_files_are_recorded_with_sizes_and_digests(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """Time, exit, sizes, digest; the content is there for whoever wants it."""
    box.recorder = notes = Notes()
    call = asyncio.create_task(box.exec(["cat", "a b"], stdin=b"in"))
    await answer(daemon, 0, b"out")
    await call
    call2 = asyncio.create_task(box.write("/a", b"data"))
    daemon.send(a.WriteOk((await daemon.next(r.Write)).id, 4))
    await call2
    command, file = notes.records
    assert (command.kind, command.subject, command.error) == ("exec", "cat a b", "")
    assert command.result is not None
    assert command.result.exit_code == 0
    assert command.sizes == {"stdin": 2, "stdout": 3, "stderr": 0}
    assert command.digests()["stdout"] == hashlib.sha256(b"out").hexdigest()
    assert (file.kind, file.subject, file.contents) == ("write", "/a", {"data": b"data"})


async def test_failures_are_recorded_by_their_kind(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """Also cancellations."""
    box.recorder = notes = Notes()
    call = asyncio.create_task(box.read("/none"))
    daemon.send(a.Error((await daemon.next(r.Read)).id, "not_found"))
    await asyncio.wait([call])
    assert isinstance(call.exception(), FileNotFoundError)
    call2 = asyncio.create_task(box.exec("x"))
    await daemon.next(r.Exec)
    call2.cancel()
    await asyncio.wait([call2])
    assert [(record.kind, record.error) for record in notes.records] == [("read", "not_found"), ("exec", "cancelled")]
