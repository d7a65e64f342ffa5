"""Output: bytes in, the same bytes out, apart, bounded, and never held back by what is still running."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Literal

import pytest

from sandlot.testing.conformance import MakeBox

MIB = 2**20


async def test_bad_utf8_is_replaced_in_the_text_and_exact_in_the_bytes(make_box: MakeBox) -> None:
    """Output that is no UTF-8 fails nothing: U+FFFD in the text view, the very bytes in the bytes view."""
    box = await make_box()
    result = await box.exec(r"printf '\377\376 ok\n'")
    assert result.stdout_bytes == b"\xff\xfe ok\n"
    assert result.stdout == "\ufffd\ufffd ok\n"
    assert result.exit_code == 0


async def test_every_byte_value_passes_unchanged(make_box: MakeBox) -> None:
    """All 256 byte values, NUL included, arrive as they were written, on both streams."""
    box = await make_box()
    data = bytes(range(256)) * 40
    result = await box.exec("tee /dev/stderr", stdin=data)
    assert result.stdout_bytes == data
    assert result.stderr_bytes == data


async def test_streams_and_exit_code_are_three_separate_values(make_box: MakeBox) -> None:
    """Standard output, standard error and the code never mix."""
    box = await make_box()
    result = await box.exec("printf out; printf err >&2; exit 7")
    assert (result.stdout, result.stderr, result.exit_code) == ("out", "err", 7)


async def test_merged_streams_keep_their_true_order(make_box: MakeBox) -> None:
    """With merge, standard error is standard output: one stream in the order of writing."""
    box = await make_box()
    result = await box.exec("for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done", merge=True)
    assert result.stdout.split() == [f"{kind}{i}" for i in range(1, 6) for kind in "oe"]
    assert result.stderr == ""


@pytest.mark.parametrize("text", ["a\n\n\nb\r\nc", "", "\n", "no newline at the end", "\r\r\n\t\x1b[31m"])
async def test_lines_and_line_ends_are_byte_exact(make_box: MakeBox, text: str) -> None:
    """Blank lines, carriage returns and missing last newlines are kept."""
    box = await make_box()
    result = await box.exec("cat", stdin=text.encode())
    assert result.stdout_bytes == text.encode()


@pytest.mark.parametrize("where", ["", " >&2"])
async def test_five_million_bytes_arrive_whole_on_either_stream(make_box: MakeBox, where: str) -> None:
    """A stream larger than any pipe neither blocks the command nor loses a byte."""
    box = await make_box()
    result = await box.exec(f"head -c 5000000 /dev/zero{where}")
    assert len(result.stdout_bytes) + len(result.stderr_bytes) == 5_000_000
    assert result.exit_code == 0


async def test_large_interleaved_streams_arrive_whole(make_box: MakeBox) -> None:
    """Two streams that grow in turn never wait for each other."""
    box = await make_box()
    script = "i=0; while [ $i -lt 40 ]; do head -c 100000 /dev/zero; head -c 100000 /dev/zero >&2; i=$((i+1)); done"
    result = await box.exec(script)
    assert (len(result.stdout_bytes), len(result.stderr_bytes)) == (4_000_000, 4_000_000)


async def test_background_child_does_not_hold_the_call(make_box: MakeBox) -> None:
    """A command is over when its first process ends, though a child still has the pipe; the child lives on."""
    box = await make_box()
    async with asyncio.timeout(20):
        result = await box.exec("echo a; sleep 300 & echo $!")
    first, pid = result.stdout.split()
    assert (first, result.exit_code) == ("a", 0)
    alive = await box.exec(f"kill -0 {pid} && echo alive")
    assert alive.stdout == "alive\n"


async def test_endless_output_is_capped_and_says_so(make_box: MakeBox) -> None:
    """A stream over its cap keeps the cap, counts the rest, and the command still ends as its limit says."""
    box = await make_box()
    result = await box.exec("yes", timeout=1, cap=MIB)
    assert result.timed_out
    assert len(result.stdout_bytes) == MIB
    assert result.out.total_bytes > 4 * MIB
    assert result.truncated


@pytest.mark.parametrize("keep", ["head", "tail", "both"])
async def test_cap_keeps_the_asked_part_and_marks_the_gap(make_box: MakeBox, keep: Literal["head", "tail", "both"]) -> None:
    """Head, tail or both ends are kept; the text view marks the gap with the number of bytes left out."""
    box = await make_box()
    result = await box.exec("seq 1 100000", cap=1000, keep=keep)
    kept, whole = result.stdout_bytes, "".join(f"{i}\n" for i in range(1, 100001)).encode()
    assert len(kept) == 1000
    assert result.out.total_bytes == len(whole)
    head, tail = kept[: result.out.head_bytes], kept[result.out.head_bytes :]
    assert whole.startswith(head)
    assert whole.endswith(tail)
    assert (len(head) > 0, len(tail) > 0) == {"head": (True, False), "tail": (False, True), "both": (True, True)}[keep]
    assert f"{len(whole) - 1000} bytes left out" in result.stdout


async def test_cap_counts_each_stream_by_itself(make_box: MakeBox) -> None:
    """A flood on one stream takes nothing from the other."""
    box = await make_box()
    result = await box.exec("head -c 3000000 /dev/zero; echo small >&2", cap=1000)
    assert result.stderr == "small\n"
    assert not result.err.truncated
    assert result.out.truncated


async def test_output_at_exactly_the_cap_is_not_truncated(make_box: MakeBox) -> None:
    """The boundary belongs to the whole."""
    box = await make_box()
    exact = await box.exec("head -c 1000 /dev/zero", cap=1000)
    over = await box.exec("head -c 1001 /dev/zero", cap=1000)
    assert (exact.truncated, over.truncated) == (False, True)


async def test_output_before_a_timeout_is_kept(make_box: MakeBox) -> None:
    """What a command wrote before its limit is in the result."""
    box = await make_box()
    result = await box.exec("echo part; echo trouble >&2; sleep 300", timeout=1)
    assert (result.stdout, result.stderr, result.timed_out) == ("part\n", "trouble\n", True)


async def test_stream_delivers_while_the_command_runs(make_box: MakeBox) -> None:
    """Chunks come before the end, in order, and together are the whole output."""
    box = await make_box()
    seen = b""
    async with box.stream("echo first; read go; echo second", stdin_open=True) as stream:
        async for chunk in stream:
            seen += chunk.data
            if seen == b"first\n":
                await stream.write_stdin(b"go\n", eof=True)
    assert seen == b"first\nsecond\n"
    assert stream.result.exit_code == 0


async def test_slow_reader_of_a_stream_loses_nothing(make_box: MakeBox) -> None:
    """A reader that pauses makes the command wait instead of dropping bytes or filling memory."""
    box = await make_box()
    digest, total = hashlib.sha256(), 0
    async with box.stream("head -c 20000000 /dev/zero") as stream:
        async for chunk in stream:
            digest.update(chunk.data)
            total += len(chunk.data)
            await asyncio.sleep(0)
    assert total == 20_000_000
    assert digest.hexdigest() == hashlib.sha256(bytes(20_000_000)).hexdigest()


async def test_many_commands_at_once_keep_their_outputs_apart(make_box: MakeBox) -> None:
    """Two hundred concurrent commands each get their own output and code."""
    box = await make_box()
    results = await asyncio.gather(*(box.exec(f"echo {i}; echo e{i} >&2; exit {i % 100}") for i in range(200)))
    seen = [(r.stdout, r.stderr, r.exit_code) for r in results]
    assert seen == [(f"{i}\n", f"e{i}\n", i % 100) for i in range(200)]


async def test_a_sleeping_command_does_not_delay_others(make_box: MakeBox) -> None:
    """While one command sleeps, a hundred others and a file write go on."""
    box = await make_box()
    sleeper = asyncio.create_task(box.exec("sleep 300"))
    await asyncio.sleep(0)
    async with asyncio.timeout(60):
        for i in range(100):
            assert (await box.exec(f"exit {i}")).exit_code == i
        await box.write("/tmp/meanwhile", b"x")
    assert not sleeper.done()
    sleeper.cancel()
    await asyncio.gather(sleeper, return_exceptions=True)
