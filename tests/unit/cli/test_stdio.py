"""Reading this process's input beside the loop, whatever it is."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from sandlot.cli.stdio import read_all, read_some, write_all


async def test_a_pipe_is_waited_for() -> None:
    """Other tasks run meanwhile, and the end of file is empty."""
    source, target = os.pipe()
    waiting = asyncio.create_task(read_some(source))
    await asyncio.sleep(0)
    assert not waiting.done()
    os.write(target, b"data")
    assert await waiting == b"data"
    os.close(target)
    assert await read_some(source) == b""
    os.close(source)


async def test_a_regular_file_is_read_to_its_end(tmp_path: Path) -> None:
    """It cannot be waited for: it is always ready."""
    path = tmp_path / "f"
    path.write_bytes(b"x" * 200_000)
    source = os.open(path, os.O_RDONLY)
    assert len(await read_all(source)) == 200_000
    os.close(source)


async def test_a_wait_can_be_cancelled() -> None:
    """No thread is left that would hold up the end of the process, and nothing is lost for the next reader."""
    source, target = os.pipe()
    waiting = asyncio.create_task(read_some(source))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    os.write(target, b"still here")
    assert await read_some(source) == b"still here"
    os.close(source)
    os.close(target)


def test_everything_is_written_and_a_reader_that_left_is_told() -> None:
    """Also what does not fit into the pipe at once is for the caller to wait for; a closed pipe raises."""
    source, target = os.pipe()
    write_all(target, b"all of it")
    assert os.read(source, 100) == b"all of it"
    os.close(source)
    with pytest.raises(BrokenPipeError):
        write_all(target, b"nobody")
    os.close(target)
