"""The shortest client of the wire contract that can test a daemon: blocking, no checks, nothing shared with the package."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec

from sandlot.daemon_binary import find_daemon

Message = dict[str, Any]
_keys = itertools.count(1)  # a known key would be an attach to the command that had it first


class Stream(Protocol):
    """A socket, or what stands for one."""

    def settimeout(self, seconds: float, /) -> None: ...

    def sendall(self, data: bytes, /) -> None: ...

    def recv(self, most: int, /) -> bytes: ...

    def close(self) -> None: ...


class Link:
    """One connection."""

    def __init__(self, sock: Stream) -> None:
        self.sock = sock
        self.sock.settimeout(60)
        self._buffer = b""
        self._id = 0

    def send(self, **message: Any) -> None:
        payload = msgspec.msgpack.encode(message)
        self.sock.sendall(struct.pack(">I", len(payload)) + payload)

    def receive(self) -> Message:
        """The next message that is not a ping. Raises EOFError at the end."""
        while True:
            (size,) = struct.unpack(">I", self._take(4))
            message: Message = msgspec.msgpack.decode(self._take(size))
            if message["t"] != "ping":
                return message
            self.send(t="pong", id=message["id"])

    def _take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            part = self.sock.recv(1 << 16)
            if not part:
                raise EOFError
            self._buffer += part
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def call(self, **message: Any) -> Message:
        """Send one call and take its answer."""
        self._id += 1
        self.send(id=self._id, **message)
        return self.receive()

    def hello(self) -> Message:
        self.send(t="hello", versions=[1], client="test")
        return self.receive()

    def close(self) -> None:
        self.sock.close()


class Box(Link):
    """A link to a sandbox."""

    def __init__(self, sock: Stream, name: str, created: Message) -> None:
        super().__init__(sock)
        self.name = name
        self.created = created
        self.greeting = self.hello()

    def run(self, script: str | bytes, **more: Any) -> Message:
        """A command to its end: the whole `exit` (or `error`) message."""
        script = script.encode() if isinstance(script, str) else script
        self._id += 1
        self.send(t="exec", id=self._id, key=f"key-{next(_keys)}", script=script, **more)
        return self.receive()

    def text(self, script: str | bytes, **more: Any) -> str:
        """Both streams of a command, standard output first."""
        end = self.run(script, **more)
        assert end["t"] == "exit", end
        out: str = (end["out"]["d"] + end["err"]["d"]).decode()
        return out.strip()

    def code(self, script: str | bytes, **more: Any) -> int | None:
        end = self.run(script, **more)
        assert end["t"] == "exit", end
        code: int | None = end["code"]
        return code


class Host:
    """A running host and its control descriptor."""

    def __init__(
        self, runtime: Path, *, mode: str | None = None, launcher: Sequence[str] = (), daemon: Path | None = None
    ) -> None:
        self.control, theirs = socket.socketpair()
        words = [*launcher, str(daemon or find_daemon()), "host", "--runtime-dir", str(runtime)]
        words += ["--control-fd", str(theirs.fileno()), "--client-pid", str(os.getpid())]
        words += ["--mode", mode] if mode else []
        self.process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env={"PATH": os.defpath}, stdin=subprocess.DEVNULL)
        theirs.close()
        self.links: list[Link] = []
        """Every connection that was made, to be closed by whoever has made the host."""
        self.ready = Link(self.control).receive()

    def dial(self) -> Link:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(self.ready["socket"])
        link = Link(sock)
        self.links.append(link)
        link.hello()
        return link

    def ask(self, **message: Any) -> Message:
        """One call on a connection of its own."""
        link = self.dial()
        try:
            return link.call(**message)
        finally:
            link.close()

    def try_create(self, name: str, **fields: Any) -> tuple[Link, Message]:
        wanted: Message = {"image": {"kind": "host"}, "upper": {"kind": "tmpfs", "size_bytes": 1 << 28}, **fields}
        link = self.dial()
        return link, link.call(t="create", name=name, **wanted)

    def create(self, name: str, **fields: Any) -> Box:
        link, answer = self.try_create(name, **fields)
        assert answer["t"] == "ok", answer
        return Box(link.sock, name, answer)

    def enter(self, name: str) -> Box:
        link = self.dial()
        answer = link.call(t="enter", name=name)
        assert answer["t"] == "ok", answer
        return Box(link.sock, name, answer)

    def destroy(self, name: str, grace_ms: int = 0) -> Message:
        return self.ask(t="destroy", name=name, grace_ms=grace_ms)

    def names(self) -> list[str]:
        return [entry["name"] for entry in self.ask(t="list")["sandboxes"]]

    def close(self) -> int:
        """Leave it; its exit code."""
        for link in self.links:
            link.close()
        self.control.close()
        return self.process.wait(30)


def copy_daemon(folder: Path) -> Path:
    """A copy that every user may execute."""
    target = folder / "sandlotd"
    shutil.copy(find_daemon(), target)
    target.chmod(0o755)
    return target
