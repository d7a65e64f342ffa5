"""One host: started by this process, dialled as often as needed, and known to be dead as soon as it is.

How a host is started and how it ends is written in `daemon/src/host/mod.rs`.
"""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import msgspec

from sandlot.backends.local.dialling import dial
from sandlot.connection import Connection
from sandlot.errors import Closed, DeadlineExceeded, SandboxGone, TransportLost, Unsupported
from sandlot.limits import MAX_HELLO_BYTES
from sandlot.protocol import answers as a
from sandlot.protocol.codes import error_from
from sandlot.protocol.fields import U32

START_TIMEOUT_S: Final = 15.0  # a host is ready within milliseconds; the rest is for a machine that swaps
REMOVAL_TIMEOUT_S: Final = 10.0
_LOOK_PAUSE_S: Final = 0.02  # nothing tells of the end of a process that is nobody's child here
_LAST_WORDS_BYTES: Final = 4_096


class Ready(msgspec.Struct, frozen=True, tag_field="t", tag="ready"):
    """What a host says when it can be dialled."""

    host: str
    socket: bytes
    pid: U32
    mode: str
    swept: tuple[str, ...] = ()


_first_frame = msgspec.msgpack.Decoder(Ready | a.Error)


@dataclass(frozen=True, slots=True)
class HostCommand:
    """What a host is started with."""

    daemon: Path
    runtime_dir: Path
    disk_dir: Path
    """Where uppers on disk are made; the runtime directory is often in memory."""
    mode: str | None = None
    launcher: tuple[str, ...] = ()
    """Words before the command: a program that runs the rest in its own place (`setpriv`, `systemd-run --scope`)."""

    def arguments(self, control: int) -> list[str]:
        words = [*self.launcher, str(self.daemon), "host", "--runtime-dir", str(self.runtime_dir)]
        words += ["--disk-dir", str(self.disk_dir)]
        words += ["--control-fd", str(control), "--client-pid", str(os.getpid())]
        return [*words, "--mode", self.mode] if self.mode else words


class HostLink:
    """A running host. `on_death` is called once, in the loop, when it ends without having been asked to."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, words: BinaryIO) -> None:
        self._process = process
        self._control: socket.socket | None = control
        self._words = words
        self._owner = os.getpid()
        self._pidfd: int | None = os.pidfd_open(process.pid)
        self._death: str | None = None
        self._on_death: Callable[[str], None] | None = None
        self.ended = asyncio.Event()
        self.ready: Ready

    @classmethod
    async def start(cls, command: HostCommand, on_death: Callable[[str], None]) -> HostLink:
        """Start a host and wait until it can be dialled.

        Raises:
            Unsupported: this machine or user cannot do it; the host says what is missing.
            DeadlineExceeded: it neither became ready nor ended within `START_TIMEOUT_S` seconds.
        """
        link = cls._spawn(command)
        try:
            link.ready = await link._first_answer()
        except BaseException:
            await link._kill()
            raise
        link._on_death = on_death
        return link

    @classmethod
    def _spawn(cls, command: HostCommand) -> HostLink:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        words = os.fdopen(os.memfd_create("sandlotd-stderr", os.MFD_CLOEXEC), "r+b")
        with theirs:
            try:
                process = subprocess.Popen(
                    command.arguments(theirs.fileno()),
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=words,
                    env={"PATH": os.defpath},  # nothing of the client's environment goes near a sandbox
                    cwd="/",
                )
            except OSError as error:
                ours.close()
                words.close()
                raise Unsupported(f"the daemon {command.daemon} cannot be started: {error.strerror}") from error
        ours.setblocking(False)
        link = cls(process, ours, words)
        loop = asyncio.get_running_loop()
        assert link._pidfd is not None
        loop.add_reader(link._pidfd, link._died)
        return link

    async def _first_answer(self) -> Ready:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                head = await self._read(4)
                size = int.from_bytes(head, "big")
                if not 1 <= size <= MAX_HELLO_BYTES * 16:
                    raise Unsupported("the daemon is no host of this release", hint="use the daemon of the same release")
                answer = _first_frame.decode(await self._read(size))
        except TimeoutError:
            raise DeadlineExceeded(f"the host did not become ready within {START_TIMEOUT_S:g} s") from None
        except msgspec.MsgspecError as error:
            raise Unsupported(f"the daemon is no host of this release: {error}") from error
        if isinstance(answer, a.Error):
            raise error_from(answer)
        return answer

    async def _read(self, size: int) -> bytes:
        assert self._control is not None
        loop = asyncio.get_running_loop()
        data = b""
        while len(data) < size:
            part = await loop.sock_recv(self._control, size - len(data))
            if not part:
                await self.ended.wait()
                raise Unsupported(f"the host ended at its start: {self._death}", hint="see `sandlot doctor`")
            data += part
        return data

    # --- use --------------------------------------------------------------------------------------------------------
    @property
    def death(self) -> str | None:
        """How the host ended, or None while it lives."""
        return self._death

    async def dial(self) -> Connection:
        """A new connection to the host, with hellos exchanged.

        Raises:
            SandboxGone: the host is dead, and with it every sandbox that it made.
            Closed: this process is a fork of the one that started the host.
            TransportLost: it could not be reached. Retriable.
        """
        self.check_owner()
        try:
            return await dial(self.ready.socket)
        except TransportLost:
            await self.settle()
            self.check_alive("the host could not be reached")
            raise

    async def settle(self) -> None:
        """A refused connection and the news of the host's death may arrive in either order: look before it is judged."""
        await asyncio.sleep(0)
        if self._pidfd is not None and self._process.poll() is not None:
            self._died()

    async def dies_within(self, seconds: float) -> bool:
        """Whether the host is dead, or is found dead within `seconds`: a broken link alone does not tell."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.ended.wait()
        return self._death is not None

    async def wait_removed(self) -> None:
        """After its death: until its warden has removed all that it left.

        Raises:
            TransportLost: that takes longer than `REMOVAL_TIMEOUT_S` seconds. Retriable.
        """
        directory = Path(os.fsdecode(self.ready.socket)).parent
        give_up = time.monotonic() + REMOVAL_TIMEOUT_S
        while directory.exists():
            if time.monotonic() >= give_up:
                raise TransportLost(f"{directory}, left by a host that was killed, is still there", hint="run `sandlot gc`")
            await asyncio.sleep(_LOOK_PAUSE_S)

    def check_owner(self) -> None:
        """Raises `Closed` in a process that was forked from the host's client: the parent's sandboxes are not its own."""
        if os.getpid() != self._owner:
            raise Closed(
                f"this provider belongs to process {self._owner}, of which this one is a fork",
                hint="open a provider of its own in each worker",
            )

    def check_alive(self, what: str) -> None:
        """Raises `SandboxGone` when the host is dead."""
        if self._death is not None:
            raise SandboxGone(f"{what}: {self._death}", why="node_lost", hint="open a new provider")

    # --- the end ----------------------------------------------------------------------------------------------------
    def _died(self) -> None:
        """The host's process has ended: reap it and tell."""
        if self._pidfd is None:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = None
        code = self._process.wait()
        how = f"exit code {code}" if code >= 0 else f"signal {-code}"
        self._words.seek(0)
        said = " ".join(self._words.read(_LAST_WORDS_BYTES).decode("utf-8", "replace").split())
        self._words.close()
        self._death = f"the host ended with {how}" + (f": {said}" if said else "")
        self.ended.set()
        if self._on_death is not None and self._control is not None:
            self._on_death(self._death)

    def hang_up(self) -> None:
        """Tell the host that its client leaves: it destroys attached sandboxes, keeps leased ones until their leases end."""
        control, self._control = self._control, None
        if control is not None:
            control.close()

    def disown(self) -> None:
        """Stop following a host that lives on for leased sandboxes. Should it end before this process, it is still reaped."""
        if self._pidfd is None:
            return
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = None
        self._words.close()
        self._process.returncode = 0  # no more the `Popen` object's to wait for, which would warn of it
        threading.Thread(target=_reap, args=(self._process.pid,), name="reap the host", daemon=True).start()

    async def _kill(self) -> None:
        """The host never became ready."""
        self.hang_up()
        if self._pidfd is not None:
            self._process.kill()
            await self.ended.wait()


def _reap(pid: int) -> None:
    """Wait for a child in a thread of its own: the loop that started it may be closed long before it ends."""
    with suppress(ChildProcessError):
        os.waitpid(pid, 0)
