"""A backend whose sandboxes are not real: for testing what is built on a backend, without a machine that can sandbox.

It runs no command and keeps no file. Each of its sandboxes is a small daemon in this process that speaks the wire
contract over a socket pair, so everything of the client above the backend is the real thing. A command is answered by a
function that the test gives (`respond`); without one `:` succeeds and every other command is answered 127 with a message
that says what this is. Files, shells and jobs are answered `unsupported`.

What can go wrong in a real backend can be made to go wrong here: `interfere` is called at each point of a sandbox's life
and may wait (on virtual time) or raise, and `kill` ends a sandbox as the kernel would. `existing` is what an observer
from outside would count.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import msgspec

from sandlot.backends.base import Gone, Grant, Opened, Part, SandboxInfo
from sandlot.connection import Connection
from sandlot.errors import SandboxFileExists, SandboxGone, SandlotError
from sandlot.limits import MAX_FRAME_BYTES
from sandlot.protocol import answers as a
from sandlot.protocol.frames import PREFIX_BYTES, encode
from sandlot.protocol.requests import Message, Pong
from sandlot.spec import Spec

Point = Literal["create.before", "create.after", "reopen", "delete", "clear", "list", "watch"]
"""`create.before`: the request is on its way, nothing exists. `create.after`: it exists, and nobody has been told."""
Interfere = Callable[[Point, str], Awaitable[None]]

NO_SUCH_COMMAND: Final = b"sandlot: this is a fake sandbox, it runs no commands\n"


@dataclass(frozen=True, slots=True)
class FakeCommand:
    """What a fake sandbox was asked to run."""

    sandbox: str
    script: str | None
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FakeResult:
    """How it shall seem to have ended."""

    code: int = 0
    out: bytes = b""
    err: bytes = b""


Respond = Callable[[FakeCommand], Awaitable[FakeResult]]


async def nothing_happens(point: Point, name: str) -> None:
    """The default interference."""


async def only_the_null_command(command: FakeCommand) -> FakeResult:
    """The default response."""
    return FakeResult() if command.script == ":" else FakeResult(127, err=NO_SUCH_COMMAND)


@dataclass(slots=True, eq=False)
class _Fake:
    """One sandbox that is not there."""

    name: str
    spec: Spec
    grant: Grant
    created_s: float
    dirty: set[str] = field(default_factory=set)
    resets_hang: bool = False
    daemons: list[_Daemon] = field(default_factory=list)


class FakeBackend:
    """Makes sandboxes that are not real. Give one to a `Provider`, and ask `existing` what is left."""

    kind = "fake"

    def __init__(self, *, respond: Respond = only_the_null_command, interfere: Interfere = nothing_happens) -> None:
        self.respond = respond
        self.interfere = interfere
        self._fakes: dict[str, _Fake] = {}
        self._requests: set[asyncio.Task[Any]] = set()
        self._watchers: set[asyncio.Queue[Gone]] = set()
        self.created = 0
        """How many came to exist."""
        self.spans: dict[Part, float] = {}
        """What each create says about its parts."""

    # --- what a test may ask and do -----------------------------------------------------------------------------------
    @property
    def existing(self) -> frozenset[str]:
        """Names of all that exist now, whoever knows of them."""
        return frozenset(self._fakes)

    def kill(self, name: str, why: str = "oom", detail: str = "") -> None:
        """End a sandbox from outside: its links break, and watchers hear of it."""
        self._remove(name)
        for watcher in self._watchers:
            watcher.put_nowait(Gone(name, why, detail))

    def taint(self, name: str, *what: str) -> None:
        """Let the next resets of this sandbox find these parts not clean."""
        self._fakes[name].dirty.update(what)

    def hang_resets(self, name: str) -> None:
        """Let resets of this sandbox never be answered."""
        self._fakes[name].resets_hang = True

    def cut(self, name: str) -> None:
        """Break the links of a sandbox that lives on."""
        for daemon in self._fakes[name].daemons:
            daemon.hang_up()

    # --- the backend --------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Nothing is needed."""

    async def create(self, name: str, spec: Spec, grant: Grant) -> Opened:
        """As a far-away service would: cancelling the call does not call the request back."""
        request = asyncio.get_running_loop().create_task(self._make(name, spec, grant))
        self._requests.add(request)
        request.add_done_callback(self._answered)
        await asyncio.wait([request])
        return Opened(await self._open(request.result()), self.spans)

    def _answered(self, request: asyncio.Task[_Fake]) -> None:
        self._requests.discard(request)
        if not request.cancelled():
            request.exception()  # its caller may be gone: nobody else would look

    async def _make(self, name: str, spec: Spec, grant: Grant) -> _Fake:
        await self.interfere("create.before", name)
        if name in self._fakes:
            raise SandboxFileExists(f"{name} exists")
        fake = self._fakes[name] = _Fake(name, spec, grant, time.time())
        self.created += 1
        await self.interfere("create.after", name)
        return fake

    async def _open(self, fake: _Fake) -> Connection:
        if self._fakes.get(fake.name) is not fake:
            raise SandboxGone(f"{fake.name} is gone", why="unknown")
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        daemon = _Daemon(fake, self.respond)
        try:
            await asyncio.get_running_loop().create_connection(lambda: daemon, sock=theirs)
        except BaseException:
            ours.close()
            raise
        fake.daemons.append(daemon)
        return await Connection.open(ours)

    async def reopen(self, name: str) -> Connection:
        await self.interfere("reopen", name)
        if name not in self._fakes:
            raise SandboxGone(f"{name} is gone", why="unknown")
        return await self._open(self._fakes[name])

    async def delete(self, name: str, *, grace_s: float = 0.0) -> bool:
        await self.interfere("delete", name)
        return self._remove(name)

    async def clear(self) -> None:
        await self.interfere("clear", "")
        for fake in list(self._fakes.values()):
            if fake.grant.owner == "attached":
                self._remove(fake.name)

    def _remove(self, name: str) -> bool:
        fake = self._fakes.pop(name, None)
        for daemon in fake.daemons if fake is not None else ():
            daemon.hang_up()
        return fake is not None

    async def list(self) -> list[SandboxInfo]:
        await self.interfere("list", "")
        return [
            SandboxInfo(fake.name, fake.grant.owner, "running", fake.created_s, fake.spec.image, fake.grant.lease_s)
            for fake in self._fakes.values()
        ]

    async def renew(self, name: str, lease_s: float) -> None:
        fake = self._fakes.get(name)
        if fake is None:
            raise SandboxGone(f"{name} is gone", why="lease_expired")
        fake.grant = Grant(fake.grant.owner, lease_s)

    async def watch(self) -> AsyncIterator[Gone]:
        queue: asyncio.Queue[Gone] = asyncio.Queue()
        self._watchers.add(queue)
        try:
            while True:
                await self.interfere("watch", "")
                yield await queue.get()
        finally:
            self._watchers.discard(queue)

    async def aclose(self) -> None:
        """Ends nothing: what its caller forgot to delete stays, for the test to see."""


class _Daemon(asyncio.Protocol):
    """The other end of one link, speaking `wire/contract.md` as far as this fake goes."""

    def __init__(self, fake: _Fake, respond: Respond) -> None:
        self._fake = fake
        self._respond = respond
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._running: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        for task in self._running:
            task.cancel()

    def hang_up(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= PREFIX_BYTES:
            (length,) = struct.unpack_from(">I", self._received)
            if length > MAX_FRAME_BYTES:
                self.hang_up()
                return
            end = PREFIX_BYTES + length
            if len(self._received) < end:
                return
            body = bytes(self._received[PREFIX_BYTES:end])
            del self._received[:end]
            self._take(msgspec.msgpack.decode(body))

    def _take(self, message: dict[str, Any]) -> None:
        kind, call = message["t"], message.get("id", 0)
        if kind == "hello":
            self._say(a.Welcome(version=1, role="init", daemon="fake", name=self._fake.name, mode="fake"))
        elif kind == "ping":
            self._say(Pong(id=call))
        elif kind == "exec":
            task = asyncio.get_running_loop().create_task(self._run(message))
            self._running.add(task)
            task.add_done_callback(self._running.discard)
        elif kind == "reset" and not self._fake.resets_hang:
            parts = {name: name not in self._fake.dirty for name in a.Verified.__struct_fields__}
            self._say(a.ResetOk(id=call, verified=a.Verified(**parts)))
        elif kind in ("processes", "quiesce"):
            self._say(a.ProcessesOk(id=call))
        elif kind == "usage":
            self._say(a.UsageOk(id=call))
        elif kind not in ("bye", "ack", "forget", "cancel", "pong", "reset"):
            self._say(a.Error(id=call, code="unsupported", message=f"a fake sandbox cannot do {kind!r}"))

    async def _run(self, message: dict[str, Any]) -> None:
        script = message.get("script")
        argv = tuple(item.decode("utf-8", "replace") for item in message.get("argv") or ())
        command = FakeCommand(self._fake.name, None if script is None else script.decode("utf-8", "replace"), argv)
        try:
            result = await self._respond(command)
        except SandlotError as error:
            self._say(a.Error(id=message["id"], code="internal", message=error.message))
            return
        out, err = (a.Kept(total=len(data), kept=len(data), head=len(data), d=data) for data in (result.out, result.err))
        self._say(a.Exit(id=message["id"], code=result.code, out=out, err=err))

    def _say(self, message: Message) -> None:
        if self._transport is not None:
            self._transport.write(encode(message))
