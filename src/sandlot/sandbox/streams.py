"""A command whose output is read while it runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal

from sandlot.connection import Connection
from sandlot.connection.sinks import Feed, Source
from sandlot.errors import BadRequest, Closed
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.protocol.fields import STDOUT
from sandlot.result import Result
from sandlot.sandbox.commands import result_of


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of output as it came."""

    stream: Literal["stdout", "stderr"]
    offset: int
    """Of its first byte in the stream."""
    data: bytes
    missing_bytes: int = 0
    """Where a job's ring has dropped what nobody read: how many bytes are missing at `offset`. `data` is then empty."""

    @property
    def text(self) -> str:
        """UTF-8 with U+FFFD for bad sequences; one that is cut by the end of the chunk counts as bad."""
        return self.data.decode("utf-8", "replace")


def chunk_of(part: a.Out | a.Gap) -> Chunk:
    name: Literal["stdout", "stderr"] = "stdout" if part.s == STDOUT else "stderr"
    if isinstance(part, a.Gap):
        return Chunk(name, part.start, b"", part.end - part.start)
    return Chunk(name, part.off, part.d)


async def follow(connection: Connection, sink: Feed) -> AsyncGenerator[Chunk, None]:
    """Chunks as the reader asks for them, until the command ends."""
    while (part := await sink.next()) is not None:
        if isinstance(part, a.Started):
            continue
        connection.consumed(sink, part)
        yield chunk_of(part)


async def send_stdin(connection: Connection, sink: Source, data: bytes, *, eof: bool) -> bool:
    """All of `data`, as fast as the command reads it. False: the command ended before it took everything."""
    view, position = memoryview(data), 0
    while True:
        room = await connection.wait_room(sink)
        if room == 0:
            return False
        piece = bytes(view[position : position + room])
        position += len(piece)
        last = position == len(view)
        connection.send_stdin(sink, piece, eof=eof and last)
        if last:
            return True


class CommandStream:
    """A running command. Iterate over it for its `Chunk`s, then look at `result`.

    A reader that pauses makes the command wait once `WINDOW_BYTES` of a stream are under way; nothing is lost. Use it as
    `async with box.stream(...) as stream`: leaving the block before the end kills the command and all its processes.
    """

    def __init__(self, connection: Connection, request: r.Exec, *, check: bool) -> None:
        self._connection = connection
        self._request = request
        self._check = check
        self._sink: Feed | None = None
        self._result: Result | None = None

    def __repr__(self) -> str:
        state = "not started" if self._sink is None else "ended" if self._sink.future.done() else "running"
        return f"<CommandStream {self.key} {state}>"

    @property
    def key(self) -> str:
        """Names the command to the daemon."""
        return self._request.key

    @property
    def result(self) -> Result:
        """How the command ended; its output is what was iterated over, so only `total_bytes` of the streams are filled.

        Raises:
            BadRequest: it has not ended, or its output was not read to the end.
        """
        if self._result is None:
            raise BadRequest("the command has not ended", hint="iterate over the stream to its end first")
        return self._result

    async def __aenter__(self) -> CommandStream:
        self._begin()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Kill the command if it still runs. Idempotent."""
        if self._sink is not None and not self._sink.future.done():
            self._connection.abandon(self._sink)
            self._sink.ended(Closed("the stream was closed by this client"))

    async def __aiter__(self) -> AsyncGenerator[Chunk, None]:
        sink = self._begin()
        async for chunk in follow(self._connection, sink):
            yield chunk
        self._result = result_of(await sink.future)
        if self._check:
            self._result.check()

    async def write_stdin(self, data: bytes | str, *, eof: bool = False) -> None:
        """Send standard input (with `stdin_open=True` or a pty), waiting while the command does not read. Text goes as UTF-8.

        After the command has ended this does nothing, as its end is what the reader is told.
        """
        payload = data.encode() if isinstance(data, str) else data
        await send_stdin(self._connection, self._begin(), payload, eof=eof)

    async def close_stdin(self) -> None:
        """End of file for the command."""
        await self.write_stdin(b"", eof=True)

    async def signal(self, number: int, *, to: Literal["tree", "leader", "group"] = "tree") -> None:
        """Send a signal to all processes of the command, its first one, or that one's process group."""
        self._begin()
        await self._connection.ask(r.Signal(id=self._connection.next_id(), key=self.key, signal=number, to=to), a.Ok)

    async def resize(self, rows: int, cols: int) -> None:
        """Tell a command with a pty its new size."""
        self._begin()
        await self._connection.ask(r.Resize(id=self._connection.next_id(), key=self.key, rows=rows, cols=cols), a.Ok)

    def _begin(self) -> Feed:
        if self._sink is None:
            self._sink = self._connection.begin(self._request, self._connection.feed())
        return self._sink
