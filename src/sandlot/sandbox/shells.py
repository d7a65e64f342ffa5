"""A shell that stays: its working directory, variables, functions and options live from run to run."""

from __future__ import annotations

import asyncio
import contextlib

from sandlot.connection import Connection
from sandlot.errors import BadRequest, Closed
from sandlot.limits import COMMAND_GRACE_S, DEFAULT_CAP_BYTES
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.result import Result
from sandlot.sandbox.commands import Keep, encode_cap, encode_script, encode_timeout, result_of
from sandlot.sandbox.recording import Recorder, Recording
from sandlot.sandbox.values import text_of


class Shell:
    """A persistent shell in the sandbox, made by `Sandbox.shell`. One run at a time; others wait for their turn.

    Standard input of a run is /dev/null. Use it as `async with await box.shell() as shell`, or `close()` it.
    """

    def __init__(self, connection: Connection, key: str, opened: a.ShellOk, recorder: Recorder | None = None) -> None:
        self.key = key
        self.pid = opened.pid
        self.program = text_of(opened.program)
        """The shell that runs, as a path inside the sandbox."""
        self.cwd: str | None = None
        """Its working directory after the last run; None before the first."""
        self.alive = True
        """False once the shell itself has ended, by `exit`, a signal or a time limit."""
        self._connection = connection
        self._recorder = recorder
        self._runs = 0
        self._turn = asyncio.Lock()

    def __repr__(self) -> str:
        return f"<Shell {self.key} {self.program} {'alive' if self.alive else 'ended'}>"

    async def __aenter__(self) -> Shell:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.close()

    async def run(
        self,
        script: str,
        *,
        timeout: float | None = None,
        cap: int | str = DEFAULT_CAP_BYTES,
        keep: Keep = "both",
        merge: bool = False,
        check: bool = False,
    ) -> Result:
        """Run a script in this shell.

        `timeout` in seconds (None: no limit) kills what the run started, and the shell where it is itself busy; partial
        output is kept. `cap`, `keep`, `merge` and `check` as in `Sandbox.exec`. Cancelling the wait kills the run.

        Raises:
            Closed: the shell has ended or was closed.
            CommandFailed, CommandTimedOut, CommandOutOfMemory: only with `check=True`.
            Infrastructure: as `Sandbox.exec`.
        """
        data, limit_ms, cap_bytes = encode_script(script), encode_timeout(timeout), encode_cap(cap)
        async with self._turn:
            if not self.alive:
                raise Closed("the shell has ended", hint="open a new one with shell()")
            self._runs += 1
            request = r.ShellRun(
                id=self._connection.next_id(), shell=self.key, key=f"{self.key}-{self._runs}", script=data,
                timeout_ms=limit_ms, cap_out=cap_bytes, cap_err=cap_bytes, keep=keep, merge=merge,
            )  # fmt: skip
            bound_s = None if timeout is None else timeout + COMMAND_GRACE_S
            with Recording(self._recorder, "shell", script) as recording:
                sink = self._connection.begin(request, self._connection.output(), bound_s=bound_s)
                exit: a.Exit = await self._connection.finish(sink)
                result = result_of(exit, sink.out, sink.err)
                recording.ended(result)
        self.alive = exit.alive is not False
        if exit.cwd is not None:
            self.cwd = text_of(exit.cwd)
        return result.check() if check else result

    async def close(self) -> None:
        """End the shell; what it started in the background goes on. Idempotent."""
        if not self.alive or self._connection.failure is not None:
            return
        self.alive = False
        with contextlib.suppress(BadRequest):  # it is gone already, by a reset or quiesce
            await self._connection.ask(r.ShellClose(id=self._connection.next_id(), shell=self.key), a.Ok)
