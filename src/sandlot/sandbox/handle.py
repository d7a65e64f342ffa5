"""The handle of one sandbox: commands and the sandbox itself. Its file calls are in `files.py`."""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Awaitable, Callable
from copy import copy
from typing import Any, Final, Literal, NoReturn

from sandlot import errors
from sandlot.connection import Connection, Reopen
from sandlot.errors import BadRequest, SandlotError, Unsupported
from sandlot.interrupts import Begun
from sandlot.limits import COMMAND_GRACE_S, DEFAULT_CAP_BYTES, MAX_CHUNK_BYTES
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.result import Result
from sandlot.sandbox.commands import (
    Command,
    Environment,
    Keep,
    Path,
    encode_cap,
    encode_env,
    encode_path,
    encode_timeout,
    program,
    result_of,
)
from sandlot.sandbox.files import Files
from sandlot.sandbox.jobs import Job
from sandlot.sandbox.recording import Recorder, Recording
from sandlot.sandbox.shells import Shell
from sandlot.sandbox.streams import CommandStream, send_stdin
from sandlot.sandbox.values import (
    ProcessInfo,
    ResetReport,
    SandboxUsage,
    process_infos,
    reset_report,
    sandbox_usage,
)

_RESULTS_HELD: Final = 256
"""Results of finished jobs that the daemon keeps for other handles; older ones are forgotten, so that they never fill up."""


class Sandbox(Files):
    """One running sandbox. Files and processes live from call to call until it is closed.

    Any number of calls may run at once. Cancelling a call cancels it inside too (a command is killed with all it started) and
    harms no other. A broken link is replaced behind the scenes: commands go on, none runs twice, no output is lost; calls whose
    effect would then be unknown raise `TransportLost`.

    Every call may raise `Infrastructure` (the sandbox is gone, the link is lost, ...): never the command's fault, retriable on
    a fresh sandbox. After `aclose` every call raises `Closed`. Use it as `async with await provider.create(...) as box`.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        name: str = "",
        reopen: Reopen | None = None,
        on_close: Callable[[float], Awaitable[None]] | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """`reopen` makes a new link when this one breaks; `on_close`, given a grace in seconds, deletes the sandbox."""
        super().__init__(connection, recorder)
        self.name = name or connection.name
        self._on_close = on_close
        self._prefix = secrets.token_hex(6)
        self._numbers = 0
        self._ended_jobs: deque[str] = deque()
        self._closed: SandlotError | None = None
        self._closing: asyncio.Task[None] | None = None
        if reopen is not None:
            connection.keep_open(reopen)

    def __repr__(self) -> str:
        return f"<Sandbox {self.name} {'closed' if self._closed is not None else self.mode or 'open'}>"

    # --- facts ------------------------------------------------------------------------------------------------------------
    @property
    def connection(self) -> Connection:
        return self._connection

    @property
    def recorder(self) -> Recorder | None:
        """Gets a `Record` of every finished command and file call; may be set at any time."""
        return self._recorder

    @recorder.setter
    def recorder(self, recorder: Recorder | None) -> None:
        self._recorder = recorder

    @property
    def mode(self) -> str:
        """Who may be whom in it: `range-root`, `range-rootless`, `single`, `nested`; `pod` in a cluster."""
        return self._connection.welcome.mode

    @property
    def unenforced(self) -> tuple[str, ...]:
        """Limits that were asked for and are not enforced (`limits="best-effort"`)."""
        return self._connection.welcome.unenforced

    @property
    def closed(self) -> bool:
        return self._closed is not None

    # --- commands ---------------------------------------------------------------------------------------------------------
    async def exec(  # noqa: PLR0913 - the exec contract is this wide, and all but the command are named
        self,
        cmd: Command,
        *,
        cwd: Path | None = None,
        env: Environment | None = None,
        user: str | int | None = None,
        stdin: bytes | str | None = None,
        timeout: float | None = None,
        cap: int | str = DEFAULT_CAP_BYTES,
        keep: Keep = "both",
        merge: bool = False,
        login: bool = False,
        check: bool = False,
        kill: Literal["tree", "leader"] = "tree",
    ) -> Result:
        """Run a command to its end.

        A `str` is run by the image's `sh`; a list is run without a shell, its program looked up in the command's PATH.

        Args:
            cwd: absolute, or relative to the sandbox's working directory (the image's WORKDIR), which is the default.
            env: over the image's environment; a value of None removes the variable. The client's own is never passed.
            user: name or id, also `name:group` or `uid:gid`. None: the sandbox's user.
            stdin: all of standard input, text as UTF-8. None: /dev/null. Any size; it is streamed.
            timeout: seconds from the moment the process exists (None: no limit). Then everything it started is killed, also
                what ran away with setsid, and the partial output is kept.
            cap: bytes kept of each of stdout and stderr (default 16 MiB, at most 256 MiB), or text such as "1MiB". What is
                over it is counted, not kept, and never stops the command.
            keep: what the cap keeps: "head", "tail", or "both" with a gap between.
            merge: standard error becomes part of standard output, in true order.
            login: a `str` is run by a login shell, which reads /etc/profile.
            check: raise when it does not succeed.
            kill: whom a timeout or cancellation kills: the "tree", or only the first process, the "leader".

        Returns:
            The result, also of a command that fails, is killed or times out. 127: not found; 126: not executable.

        Raises:
            CommandFailed, CommandTimedOut, CommandOutOfMemory: only with `check=True`; `.result` has the output.
            FileNotFoundError, NotADirectoryError: `cwd` is not there.
            BadRequest, ArgumentTooLong: the arguments can never work. UserUnsupported: no such user to become here.
            SandboxGone, TransportLost, DeadlineExceeded (no answer 30 s after `timeout`), Capacity: retriable.
        """
        connection = self._ready()
        data = stdin.encode() if isinstance(stdin, str) else stdin
        streamed = data is not None and len(data) > MAX_CHUNK_BYTES
        limit_ms, cap_bytes = encode_timeout(timeout), encode_cap(cap)
        request = r.Exec(
            id=connection.next_id(), key=self._next_key(), **program(cmd, cwd=cwd, env=env, user=user),
            stdin=None if streamed else data, stdin_open=streamed, timeout_ms=limit_ms, kill=kill,
            cap_out=cap_bytes, cap_err=cap_bytes, keep=keep, merge=merge, login=login, done=connection.take_done(),
        )  # fmt: skip
        bound_s = None if timeout is None else timeout + COMMAND_GRACE_S
        with Recording(self._recorder, "exec", cmd) as recording:
            recording.data("stdin", data)
            sink = connection.begin(request, connection.output(), bound_s=bound_s)
            if streamed and data is not None:
                await self._feed(sink, data)
            result = result_of(await connection.finish(sink), sink.out, sink.err)
            recording.ended(result)
        return result.check() if check else result

    def stream(  # noqa: PLR0913 - as exec
        self,
        cmd: Command,
        *,
        cwd: Path | None = None,
        env: Environment | None = None,
        user: str | int | None = None,
        stdin: bytes | None = None,
        stdin_open: bool = False,
        timeout: float | None = None,
        merge: bool = False,
        pty: tuple[int, int] | None = None,
        login: bool = False,
        check: bool = False,
        kill: Literal["tree", "leader"] = "tree",
    ) -> CommandStream:
        """Run a command and read its output as it comes.

            async with box.stream("make") as stream:
                async for chunk in stream: ...
            stream.result

        Arguments as for `exec`, without caps: a reader that pauses makes the command wait. `stdin` is at most 256 KiB here;
        with `stdin_open=True` more may follow by `write_stdin`. `pty=(rows, columns)` gives a controlling terminal, whose
        output is all on stdout; use it for interactive programs. Raises as `exec`, when it is entered or iterated over.
        """
        fields = self._fields(cmd, cwd, env, user, stdin, pty)
        request = r.Exec(
            id=self._connection.next_id(), key=self._next_key(), **fields, stdin_open=stdin_open or pty is not None,
            timeout_ms=encode_timeout(timeout), kill=kill, mode="stream", merge=merge, login=login,
        )  # fmt: skip
        return CommandStream(self._ready(), request, check=check)

    async def start(  # noqa: PLR0913 - as exec
        self,
        cmd: Command,
        *,
        cwd: Path | None = None,
        env: Environment | None = None,
        user: str | int | None = None,
        stdin: bytes | None = None,
        stdin_open: bool = False,
        timeout: float | None = None,
        cap: int | str = DEFAULT_CAP_BYTES,
        merge: bool = False,
        pty: tuple[int, int] | None = None,
        login: bool = False,
        key: str | None = None,
    ) -> Job:
        """Start a command in the background; returns as soon as its process exists.

        Arguments as for `exec` and `stream`. The job never waits for a reader: the last `cap` bytes of each stream are kept.
        `key` (1 to 64 characters) names it for other handles, which find it by `job(key)`; None: a fresh one. Starting a key
        that is known already starts nothing and gives that job.

        Raises:
            As `exec`.
        """
        connection = self._ready()
        if key is not None and not 1 <= len(key) <= 64:
            raise BadRequest(f"a key has 1 to 64 characters, not {len(key)}")
        cap_bytes = encode_cap(cap)
        fields = self._fields(cmd, cwd, env, user, stdin, pty)
        request = r.Exec(
            id=connection.next_id(), key=key or self._next_key(), **fields, stdin_open=stdin_open or pty is not None,
            timeout_ms=encode_timeout(timeout), mode="job", cap_out=cap_bytes, cap_err=cap_bytes, merge=merge, login=login,
            done=connection.take_done(),
        )  # fmt: skip
        with Recording(self._recorder, "start", cmd) as recording:
            recording.data("stdin", stdin)
            sink = connection.begin(request, connection.sink(), patience_s=COMMAND_GRACE_S)
            started: a.Started = await connection.finish(sink)
        return Job(connection, request.key, pid=started.pid, cap=cap_bytes, recorder=self._recorder, on_end=self._job_ended)

    def job(self, key: str) -> Job:
        """A job that this or another handle started, by its key. Whether it exists shows at the first call on it."""
        return Job(self._ready(), key, recorder=self._recorder, on_end=self._job_ended)

    async def shell(
        self,
        program: Path | None = None,
        *,
        cwd: Path | None = None,
        env: Environment | None = None,
        user: str | int | None = None,
    ) -> Shell:
        """Open a shell whose working directory, variables, functions and options persist from run to run.

        `program`: its path; None: the image's bash, else sh. Other arguments as for `exec`.

        Raises:
            FileNotFoundError: there is no such shell in the image.
            As `exec`.
        """
        connection, key = self._ready(), self._next_key()
        request = r.ShellOpen(
            id=connection.next_id(), key=key, program=None if program is None else encode_path(program),
            cwd=None if cwd is None else encode_path(cwd), env=encode_env(env or {}), user=None if user is None else str(user),
        )  # fmt: skip
        return Shell(connection, key, await connection.ask(request, a.ShellOk), self._recorder)

    # --- the sandbox itself -----------------------------------------------------------------------------------------------
    async def ping(self) -> None:
        """A round trip to the daemon and nothing else. Raises `Infrastructure` when it does not come back."""
        connection = self._ready()
        await connection.ask(r.Usage(id=connection.next_id()), a.UsageOk)

    async def usage(self) -> SandboxUsage:
        """What the sandbox uses now, and its limits."""
        connection = self._ready()
        return sandbox_usage(await connection.ask(r.Usage(id=connection.next_id()), a.UsageOk))

    async def processes(self) -> list[ProcessInfo]:
        """All processes but the daemon's own."""
        connection = self._ready()
        return process_infos(await connection.ask(r.Processes(id=connection.next_id()), a.ProcessesOk))

    async def quiesce(self, how: Literal["kill", "freeze", "thaw"] = "kill") -> list[ProcessInfo]:
        """Stand between an agent and its judge: kill (default), freeze or thaw every process; those that were found.

        After "kill" no process but the daemon is left, persistent shells included; commands run as before.
        """
        connection = self._ready()
        return process_infos(await connection.ask(r.Quiesce(id=connection.next_id(), how=how), a.ProcessesOk))

    async def reset(self) -> ResetReport:
        """Make everything as after creation: files, processes, shared memory, mounts, network, host name.

        Running commands end killed, results that were not fetched are forgotten. Look at the report's `clean`: if it is false,
        delete the sandbox instead of using it again.
        """
        connection = self._ready()
        self._ended_jobs.clear()
        return reset_report(await connection.ask(r.Reset(id=connection.next_id()), a.ResetOk))

    async def checkpoint(self) -> NoReturn:
        """Not in this version.

        Raises:
            Unsupported: always.
        """
        raise _unsupported("checkpoint")

    async def rollback(self, mark: object) -> NoReturn:
        """Not in this version. Raises `Unsupported`."""
        raise _unsupported("rollback")

    async def fork(self, count: int = 1) -> NoReturn:
        """Not in this version. Raises `Unsupported`."""
        raise _unsupported("fork")

    # --- the end ----------------------------------------------------------------------------------------------------------
    async def __aenter__(self) -> Sandbox:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.aclose()

    async def aclose(self, *, grace_s: float = 0.0) -> None:
        """Give the sandbox up: with an owner behind the handle it is deleted, and nothing of it is left when this returns.

        `grace_s` seconds pass between TERM and KILL for its processes; 0 kills at once. Idempotent, and safe to cancel: the
        deletion goes on. Calls that are under way end with `SandboxGone` or `Closed`.
        """
        if self._closing is None:
            self._closed = self._closed or errors.Closed(f"the sandbox {self.name} was closed by this client")
            self._closing = asyncio.get_running_loop().create_task(Begun(self._end(grace_s)), name=f"close {self.name}")
        await asyncio.shield(self._closing)

    def abort(self, error: SandlotError) -> None:
        """End this handle at once, without deleting anything: all its calls, now and later, raise `error`.

        While `aclose` is under way it changes nothing: that lets calls end with their sandbox.
        """
        if self._closing is not None:
            return
        self._closed = error
        self._connection.fail(error)

    async def _end(self, grace_s: float) -> None:
        try:
            if self._on_close is not None:
                self._connection.keep_open(self._no_more)
                await self._on_close(grace_s)
        finally:
            await self._connection.aclose()

    async def _no_more(self) -> Connection:
        raise errors.SandboxGone(f"the sandbox {self.name} was deleted by this client", why="killed")

    # --- inside -----------------------------------------------------------------------------------------------------------
    def _ready(self) -> Connection:
        if self._closed is not None:
            raise copy(self._closed)
        return self._connection

    def _next_key(self) -> str:
        self._numbers += 1
        return f"{self._prefix}{self._numbers:x}"

    def _job_ended(self, key: str) -> None:
        self._ended_jobs.append(key)
        if len(self._ended_jobs) > _RESULTS_HELD:
            self._connection.forget(self._ended_jobs.popleft())

    def _fields(
        self,
        cmd: Command,
        cwd: Path | None,
        env: Environment | None,
        user: str | int | None,
        stdin: bytes | None,
        pty: tuple[int, int] | None,
    ) -> dict[str, Any]:
        if stdin is not None and len(stdin) > MAX_CHUNK_BYTES:
            raise BadRequest(f"stdin of {len(stdin)} bytes; at most {MAX_CHUNK_BYTES} here", hint="use write_stdin")
        if pty is not None and not all(0 < size < 65536 for size in pty):
            raise BadRequest(f"a terminal of {pty} rows and columns")
        return {**program(cmd, cwd=cwd, env=env, user=user), "stdin": stdin, "pty": pty}

    async def _feed(self, sink: Any, data: bytes) -> None:
        """Send standard input; a wait that is cancelled meanwhile cancels the command."""
        try:
            await send_stdin(self._connection, sink, data, eof=True)
        except BaseException:
            self._connection.abandon(sink)
            raise


def _unsupported(what: str) -> Unsupported:
    return Unsupported(f"{what} is not supported by this version", hint="reset() restores the state after creation")
