"""What a daemon sends: one frozen struct a message, and one for each shape of `ok`. Every byte of it is untrusted."""

from __future__ import annotations

from msgspec import Struct, field

from sandlot.protocol.fields import U8, U32, U63, FileKind, Offset, Role, StreamNumber
from sandlot.protocol.requests import Ack, Data, Entry, Message, Ping, Pong


class Welcome(Message, frozen=True, tag="hello"):
    version: U32
    role: Role
    daemon: str = ""
    name: str = ""
    features: tuple[str, ...] = ()
    mode: str = ""
    unenforced: tuple[str, ...] = ()


class Error(Message, frozen=True, tag="error"):
    id: U32
    code: str
    message: str = ""
    errno: U32 | None = None
    path: bytes | None = None
    why: str | None = None


class Started(Message, frozen=True, tag="started"):
    id: U32
    pid: U32


class Out(Message, frozen=True, tag="out"):
    id: U32
    s: StreamNumber
    off: Offset
    d: bytes


class Gap(Message, frozen=True, tag="gap", rename={"start": "from", "end": "to"}):
    """A job's ring no longer has the bytes from `start` to `end`."""

    id: U32
    s: StreamNumber
    start: Offset
    end: Offset


class Kept(Struct, frozen=True, omit_defaults=True):
    """What is left of one stream: written in all, kept, how many of the kept lie before the gap, kept and not yet sent."""

    total: U63 = 0
    kept: U63 = 0
    head: U63 = 0
    d: bytes = b""


class Exit(Message, frozen=True, tag="exit"):
    id: U32
    code: U8 | None = None
    signal: U8 | None = None
    timed_out: bool = False
    oom: bool = False
    out: Kept = Kept()
    err: Kept = Kept()
    wall_us: U63 = 0
    user_us: U63 = 0
    sys_us: U63 = 0
    peak_bytes: U63 | None = None
    spawn_us: U63 = 0
    unenforced: tuple[str, ...] = ()
    cwd: bytes | None = None
    alive: bool | None = None


class Listed(Struct, frozen=True, omit_defaults=True):
    path: bytes
    kind: FileKind
    size: U63 = 0
    mode: U32 = 0
    mtime_ns: U63 = 0
    target: bytes | None = None


class Entries(Message, frozen=True, tag="entries"):
    id: U32
    entries: tuple[Listed, ...]


class Gone(Message, frozen=True, tag="gone"):
    """A sandbox ended by itself (answer to `watch`)."""

    id: U32
    name: str
    why: str
    detail: str = ""


class Ok(Message, frozen=True, tag="ok"):
    """The end of a call that succeeded; its body is one of the shapes below, known by the request."""

    id: U32


class ReadOk(Ok, frozen=True, tag="ok"):
    size: U63
    mode: U32
    mtime_ns: U63


class WriteOk(Ok, frozen=True, tag="ok"):
    size: U63


class StatOk(Ok, frozen=True, tag="ok"):
    kind: FileKind
    size: U63 = 0
    mode: U32 = 0
    uid: U32 = 0
    gid: U32 = 0
    mtime_ns: U63 = 0
    target: bytes | None = None


class ListOk(Ok, frozen=True, tag="ok"):
    truncated: bool = False


class TransferOk(Ok, frozen=True, tag="ok"):
    files: U63 = 0
    dirs: U63 = 0
    links: U63 = 0
    data_bytes: U63 = field(default=0, name="bytes")
    skipped: tuple[bytes, ...] = ()


class ShellOk(Ok, frozen=True, tag="ok"):
    pid: U32
    program: bytes


class UsageOk(Ok, frozen=True, tag="ok"):
    cpu_us: U63 | None = None
    memory_bytes: U63 | None = None
    memory_peak_bytes: U63 | None = None
    memory_limit_bytes: U63 | None = None
    pids: U63 | None = None
    pids_limit: U63 | None = None
    disk_bytes: U63 | None = None
    disk_limit_bytes: U63 | None = None
    oom_kills: U63 | None = None
    cpu_limit_millis: U63 | None = None


class Process(Struct, frozen=True, omit_defaults=True):
    pid: U32
    ppid: U32 = 0
    uid: U32 = 0
    state: str = ""
    name: bytes = b""
    argv: tuple[bytes, ...] = ()
    key: str | None = None


class ProcessesOk(Ok, frozen=True, tag="ok"):
    """Answer to `processes` and to `quiesce`."""

    processes: tuple[Process, ...] = ()


class Verified(Struct, frozen=True):
    """Each part of an episode's traces: true when it was checked to be as after creation."""

    processes: bool
    files: bool
    mounts: bool
    ipc: bool
    hostname: bool
    network: bool


class ResetOk(Ok, frozen=True, tag="ok"):
    verified: Verified
    killed: U63 = 0
    changed_bytes: U63 | None = None
    took_us: U63 = 0


class CreateOk(Ok, frozen=True, tag="ok"):
    unenforced: tuple[str, ...] = ()
    spans: dict[str, U63] = field(default_factory=dict)


class DestroyOk(Ok, frozen=True, tag="ok"):
    existed: bool


class SandboxRow(Struct, frozen=True, omit_defaults=True):
    name: str
    owner: str
    pid: U32 = 0
    mode: str = ""
    created_ms: U63 = 0
    lease_left_ms: U63 | None = None
    labels: dict[str, str] = field(default_factory=dict)
    image: str = ""


class SandboxesOk(Ok, frozen=True, tag="ok"):
    sandboxes: tuple[SandboxRow, ...] = ()


class Missing(Struct, frozen=True):
    what: str
    why: str
    remedy: str


class ProbeOk(Ok, frozen=True, tag="ok"):
    mode: str
    facts: dict[str, str] = field(default_factory=dict)
    missing: tuple[Missing, ...] = ()


FromDaemon = Welcome | Error | Ping | Pong | Ack | Started | Out | Gap | Exit | Data | Entry | Entries | Gone | Ok
"""All that a daemon may say; `Ok` here is only the envelope."""
