"""A command in the background, known by its key: output from any byte, standard input, signals, its end."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Literal

from sandlot.connection import Connection
from sandlot.connection.sinks import Feed
from sandlot.errors import BadRequest, Closed
from sandlot.limits import MAX_CAP_BYTES
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.protocol.calls import Outbound
from sandlot.protocol.fields import STDERR, STDOUT
from sandlot.result import Result, Stream
from sandlot.sandbox.commands import result_of
from sandlot.sandbox.recording import Recorder, Recording
from sandlot.sandbox.streams import Chunk, follow


class _Tail:
    """The last `cap` bytes of a stream."""

    def __init__(self, cap: int) -> None:
        self._cap = cap
        self._parts: deque[bytes] = deque()
        self._size = 0

    def add(self, data: bytes) -> None:
        self._parts.append(data)
        self._size += len(data)
        while self._parts and self._size - len(self._parts[0]) >= self._cap:
            self._size -= len(self._parts.popleft())

    def stream(self, total: int) -> Stream:
        data = b"".join(self._parts)
        return Stream(data[-self._cap :] if self._cap else b"", total, 0)


class Job:
    """A background command. It never waits for a reader: each stream keeps its last `cap` bytes.

    Made by `Sandbox.start`, or by `Sandbox.job(key)` for one that another handle started. It lives until it ends, is
    signalled, or the sandbox is reset or gone; dropping this handle does nothing to it.
    """

    def __init__(
        self,
        connection: Connection,
        key: str,
        *,
        pid: int | None = None,
        cap: int = MAX_CAP_BYTES,
        recorder: Recorder | None = None,
        on_end: Callable[[str], None] | None = None,
    ) -> None:
        self.key = key
        """Names the job in this sandbox; another handle finds it by it."""
        self.pid = pid
        """As seen inside the sandbox; None when the job was found by its key."""
        self._connection = connection
        self._cap = cap
        self._recorder = recorder
        self._on_end = on_end
        self._following: Feed | None = None
        self._outbound: Outbound | None = None
        self._exit: a.Exit | None = None
        self._result: Result | None = None
        self._collecting = asyncio.Lock()
        self._writing = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Job {self.key} {'ended' if self._exit is not None else 'pid ' + str(self.pid or '?')}>"

    # --- output ---------------------------------------------------------------------------------------------------------
    async def output(self, out_from: int = 0, err_from: int = 0) -> AsyncGenerator[Chunk, None]:
        """Output from these byte offsets on, as it comes, until the job ends or the loop is left.

        What the ring has dropped shows as a chunk without data whose `missing_bytes` says how much. One reader at a time:
        a second one, also from another handle, takes the job over and the first ends with `Closed`.

        Raises:
            BadRequest: nothing is known of this key (never started, or its result was dropped).
        """
        if min(out_from, err_from) < 0:
            raise BadRequest(f"offsets must not be negative, got {out_from} and {err_from}")
        async with self._collecting:
            sink = self._attach(out_from, err_from, output=True)
        try:
            async for chunk in follow(self._connection, sink):
                yield chunk
            self._exit = await sink.future
        finally:
            self._let_go(sink)

    async def wait(self) -> Result:
        """Until the job has ended: its result, with the last `cap` bytes of each stream. May be called again.

        Cancelling this wait does nothing to the job.

        Raises:
            BadRequest: nothing is known of this key.
        """
        if self._result is not None:
            return self._result
        with Recording(self._recorder, "wait", self.key) as recording:
            ended = self._exit or await self._wait_exit()
            async with self._collecting:
                if self._result is None:
                    self._result = await self._collect(ended)
            recording.ended(self._result)
        if self._on_end is not None:
            self._on_end(self.key)
        return self._result

    # --- input ----------------------------------------------------------------------------------------------------------
    async def write_stdin(self, data: bytes | str, *, eof: bool = False) -> None:
        """Send standard input (when started with `stdin_open=True` or a pty); text goes as UTF-8.

        Waits while the job does not read. After the job has ended this does nothing.
        """
        payload = data.encode() if isinstance(data, str) else data
        async with self._writing:
            position = 0
            while True:
                sink = self._live()
                room = await self._connection.wait_room(sink)
                if room == 0:
                    if await self._over(sink):
                        return
                    continue
                piece = payload[position : position + room]
                position += len(piece)
                self._connection.send_stdin(sink, piece, eof=eof and position == len(payload))
                if position == len(payload):
                    return

    async def close_stdin(self) -> None:
        """End of file for the job."""
        await self.write_stdin(b"", eof=True)

    async def signal(self, number: int, *, to: Literal["tree", "leader", "group"] = "tree") -> None:
        """Send a signal to all processes of the job, its first one, or that one's process group.

        Raises:
            BadRequest: nothing is known of this key.
        """
        await self._connection.ask(r.Signal(id=self._connection.next_id(), key=self.key, signal=number, to=to), a.Ok)

    async def kill(self) -> Result:
        """Kill all processes of the job and wait for its end."""
        await self.signal(9)
        return await self.wait()

    async def resize(self, rows: int, cols: int) -> None:
        """Tell a job with a pty its new size."""
        await self._connection.ask(r.Resize(id=self._connection.next_id(), key=self.key, rows=rows, cols=cols), a.Ok)

    # --- inside ---------------------------------------------------------------------------------------------------------
    def _attach(self, out_from: int, err_from: int, *, output: bool) -> Feed:
        """Attaching moves the job to the new call; whoever followed it in the former one is told."""
        request = r.Attach(id=self._connection.next_id(), key=self.key, out_from=out_from, err_from=err_from, output=output)
        self._following = self._connection.begin(request, self._connection.feed(), outbound=self._outbound)
        self._outbound = self._following.call.outbound
        return self._following

    def _live(self) -> Feed:
        """The call that follows the job now, or a new one."""
        if self._following is None or self._following.future.done():
            return self._attach(0, 0, output=False)
        return self._following

    def _let_go(self, sink: Feed) -> None:
        """Nobody reads this call's output any more; the job goes on."""
        if not sink.future.done():
            self._connection.release(sink)
            sink.ended(Closed("the reader of the job's output left"))
        if self._following is sink:
            self._following = None

    async def _over(self, sink: Feed) -> bool:
        """Whether the job has ended, after its call has. False: this handle follows it in another call now.

        Raises:
            Whatever else ended the call: another handle took the job over, the sandbox is gone, ...
        """
        try:
            self._exit = await asyncio.shield(sink.future)
        except Closed:
            if self._following is sink:
                raise
            return False  # a call on a connection that has failed says why it has
        return True

    async def _wait_exit(self) -> a.Exit:
        while self._exit is None:
            await self._over(self._live())
        return self._exit

    async def _collect(self, ended: a.Exit) -> Result:
        """Fetch what the rings of a finished job hold."""
        tails = {STDOUT: _Tail(self._cap), STDERR: _Tail(self._cap)}
        sink = self._attach(0, 0, output=True)
        while (part := await sink.next()) is not None:
            if isinstance(part, a.Out):
                tails[part.s].add(part.d)
            if not isinstance(part, a.Started):
                self._connection.consumed(sink, part)
        await sink.future
        result = result_of(ended)
        return replace(result, out=tails[STDOUT].stream(ended.out.total), err=tails[STDERR].stream(ended.err.total))
