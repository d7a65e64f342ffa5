"""The process's own standard streams beside an event loop, without changing their flags: others may share them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sandlot.sandbox import CommandStream

_BYTES: Final = 65_536


@asynccontextmanager
async def pass_on(source: int | None, stream: CommandStream) -> AsyncIterator[None]:
    """While the block runs, what can be read from a descriptor goes to the command, its end of file too. None: nothing does."""
    if source is None:
        yield
        return
    feeder = asyncio.create_task(_feed(source, stream), name="pass standard input on")
    try:
        yield
    finally:
        feeder.cancel()
        await asyncio.wait([feeder])


async def _feed(source: int, stream: CommandStream) -> None:
    while data := await read_some(source):
        await stream.write_stdin(data)
    await stream.close_stdin()


async def read_all(source: int) -> bytes:
    """Everything up to the end of file."""
    parts = []
    while data := await read_some(source):
        parts.append(data)
    return b"".join(parts)


async def read_some(source: int) -> bytes:
    """The next bytes, empty at the end of file. Waits in the loop, never in a thread that could not be cancelled."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(source, ready.set)
    except PermissionError:
        return os.read(source, _BYTES)  # a regular file: it cannot be waited for and is always ready
    try:
        await ready.wait()
    finally:
        loop.remove_reader(source)
    return os.read(source, _BYTES)


def write_all(target: int, data: bytes) -> None:
    """Write to a descriptor. It may wait for a slow reader, and then the command waits too: nothing piles up here.

    Raises:
        BrokenPipeError: the reader went away.
    """
    view = memoryview(data)
    while view:
        view = view[os.write(target, view) :]
