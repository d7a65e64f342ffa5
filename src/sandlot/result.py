"""What a command left behind: a plain value, made by the session, read by everybody above it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from sandlot.errors import CommandFailed, CommandOutOfMemory, CommandTimedOut


@dataclass(frozen=True, slots=True)
class Stream:
    """One output stream of a finished command, as kept under its cap."""

    data: bytes = b""
    """The kept bytes. Where something was left out, the gap lies after the first `head_bytes` of them."""
    total_bytes: int = 0
    """What the command wrote, kept or not."""
    head_bytes: int = 0

    @property
    def truncated(self) -> bool:
        return self.total_bytes > len(self.data)

    @property
    def text(self) -> str:
        """UTF-8 with U+FFFD for every bad sequence; a gap is marked by one line that says how much is missing."""
        if not self.truncated:
            return self.data.decode("utf-8", "replace")
        left_out = self.total_bytes - len(self.data)
        head, tail = self.data[: self.head_bytes], self.data[self.head_bytes :]
        mark = f"\n[... {left_out} bytes left out ...]\n"
        return head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Usage:
    """What a command used. None where the machine cannot tell."""

    wall_s: float = 0.0
    """From the moment its process existed to its end; connecting and waiting for a free slot are not in it."""
    user_cpu_s: float = 0.0
    system_cpu_s: float = 0.0
    peak_memory: int | None = None
    """Bytes, of all its processes together where a cgroup counts them, else of the largest."""

    @property
    def cpu_s(self) -> float:
        return self.user_cpu_s + self.system_cpu_s


@dataclass(frozen=True, slots=True)
class Result:
    """How a command ended. Exactly one of `code` and `signal` is set."""

    code: int | None
    signal: int | None = None
    timed_out: bool = False
    oom_killed: bool = False
    out: Stream = field(default_factory=Stream)
    err: Stream = field(default_factory=Stream)
    usage: Usage = field(default_factory=Usage)
    spawn_s: float = 0.0
    """From the daemon's reading of the request to the existence of the process."""
    unenforced: tuple[str, ...] = ()
    """Limits that were asked for and are not enforced (`limits="best-effort"`)."""

    @property
    def exit_code(self) -> int:
        """The code, or 128 + the signal, as a shell would say it."""
        return self.code if self.code is not None else 128 + (self.signal or 0)

    @property
    def ok(self) -> bool:
        return self.code == 0 and not self.timed_out

    @property
    def stdout(self) -> str:
        return self.out.text

    @property
    def stderr(self) -> str:
        return self.err.text

    @property
    def stdout_bytes(self) -> bytes:
        return self.out.data

    @property
    def stderr_bytes(self) -> bytes:
        return self.err.data

    @property
    def truncated(self) -> bool:
        return self.out.truncated or self.err.truncated

    @property
    def error_type(self) -> Literal["", "timed_out", "out_of_memory", "signal", "failed"]:
        """One word for how it ended; empty when it succeeded."""
        if self.timed_out:
            return "timed_out"
        if self.oom_killed:
            return "out_of_memory"
        if self.signal is not None:
            return "signal"
        return "failed" if self.code else ""

    def check(self) -> Result:
        """The result itself when it succeeded.

        Raises:
            CommandTimedOut, CommandOutOfMemory, CommandFailed: the command's own doing; never retriable.
        """
        if self.timed_out:
            raise CommandTimedOut(f"timed out after {self.usage.wall_s:.3g} s", self)
        if self.oom_killed:
            raise CommandOutOfMemory("killed for memory", self)
        if self.code != 0:
            how = f"exit code {self.code}" if self.code is not None else f"signal {self.signal}"
            tail = self.stderr.strip().splitlines()[-1:] or self.stdout.strip().splitlines()[-1:]
            raise CommandFailed(how + (f": {tail[0][:200]}" if tail else ""), self)
        return self
