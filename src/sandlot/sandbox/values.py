"""Plain values that a sandbox's calls return. Names and numbers in them come from inside: do not trust them."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Literal

from sandlot.protocol import answers as a

FileKind = Literal["file", "dir", "link", "fifo", "socket", "char", "block"]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file, directory or other thing in the sandbox."""

    path: str
    """As it was asked for, or relative to the listed directory. Bytes that are no UTF-8 are kept by `surrogateescape`."""
    kind: FileKind
    size: int
    """Bytes."""
    mode: int
    """Permission bits, with setuid, setgid and sticky."""
    mtime_ns: int
    """Nanoseconds since 1970."""
    target: str | None = None
    """Where a link points, as it is written there."""
    uid: int | None = None
    """None in listings."""
    gid: int | None = None

    @property
    def name(self) -> str:
        return os.path.basename(self.path)

    @property
    def is_file(self) -> bool:
        return self.kind == "file"

    @property
    def is_dir(self) -> bool:
        return self.kind == "dir"


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """One process in the sandbox, without the daemon's own."""

    pid: int
    ppid: int
    uid: int
    state: str
    """The kernel's letter: R, S, D, Z, T, ..."""
    name: str
    argv: tuple[bytes, ...]
    """At most 4 KiB of it."""
    key: str | None
    """Of the command it belongs to, where that is known."""


@dataclass(frozen=True, slots=True)
class SandboxUsage:
    """What the whole sandbox uses now. None where the machine cannot tell or nothing is limited."""

    cpu_s: float | None
    memory_bytes: int | None
    memory_peak_bytes: int | None
    memory_limit_bytes: int | None
    pids: int | None
    pids_limit: int | None
    disk_bytes: int | None
    disk_limit_bytes: int | None
    oom_kills: int | None
    cpu_limit: float | None
    """CPUs."""


@dataclass(frozen=True, slots=True)
class ResetReport:
    """What a reset found and did."""

    clean: bool
    """False: something could not be verified to be as after creation; delete the sandbox."""
    dirty: tuple[str, ...]
    """Which of processes, files, mounts, ipc, hostname, network are not clean."""
    killed: int
    """Processes."""
    changed_bytes: int | None
    """What the episode had written. None: it lay on a disk that others write to as well, where nobody counts it."""
    took_s: float


@dataclass(frozen=True, slots=True)
class TransferReport:
    """What an upload or download moved."""

    files: int
    dirs: int
    links: int
    data_bytes: int
    skipped: tuple[bytes, ...] = ()
    """Paths of sockets, fifos and devices, which are not transferred."""


# --- from the wire -------------------------------------------------------------------------------------------------------
def text_of(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def listed(entry: a.Listed) -> FileInfo:
    target = None if entry.target is None else text_of(entry.target)
    return FileInfo(text_of(entry.path), entry.kind, entry.size, entry.mode, entry.mtime_ns, target)


def file_info(path: bytes, answer: a.StatOk) -> FileInfo:
    target = None if answer.target is None else text_of(answer.target)
    return FileInfo(
        text_of(path), answer.kind, answer.size, answer.mode, answer.mtime_ns, target, uid=answer.uid, gid=answer.gid
    )


def process_infos(answer: a.ProcessesOk) -> list[ProcessInfo]:
    return [
        ProcessInfo(p.pid, p.ppid, p.uid, p.state, p.name.decode("utf-8", "replace"), p.argv, p.key) for p in answer.processes
    ]


def sandbox_usage(answer: a.UsageOk) -> SandboxUsage:
    return SandboxUsage(
        cpu_s=None if answer.cpu_us is None else answer.cpu_us / 1e6,
        memory_bytes=answer.memory_bytes,
        memory_peak_bytes=answer.memory_peak_bytes,
        memory_limit_bytes=answer.memory_limit_bytes,
        pids=answer.pids,
        pids_limit=answer.pids_limit,
        disk_bytes=answer.disk_bytes,
        disk_limit_bytes=answer.disk_limit_bytes,
        oom_kills=answer.oom_kills,
        cpu_limit=None if answer.cpu_limit_millis is None else answer.cpu_limit_millis / 1000,
    )


def reset_report(answer: a.ResetOk) -> ResetReport:
    dirty = tuple(name for name in answer.verified.__struct_fields__ if not getattr(answer.verified, name))
    return ResetReport(not dirty, dirty, answer.killed, answer.changed_bytes, answer.took_us / 1e6)


def transfer_report(answer: a.TransferOk) -> TransferReport:
    return TransferReport(answer.files, answer.dirs, answer.links, answer.data_bytes, answer.skipped)
