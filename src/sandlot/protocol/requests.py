"""What a client sends: one frozen struct a message of `wire/contract.md`. Absent fields have the defaults written here."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from sandlot.limits import DEFAULT_CAP_BYTES
from sandlot.protocol.fields import U32, U63, EntryKind, Keep, KillScope, Mode, Offset, SignalScope, StreamNumber


class Message(Struct, frozen=True, omit_defaults=True, tag_field="t"):
    """A map with the message's type under `t`."""


class Request(Message, frozen=True):
    """A message that opens a call: the session sets `id`, a u32 that is unique among the connection's live calls."""

    id: U32


# --- the connection ------------------------------------------------------------------------------------------------
class Hello(Message, frozen=True, tag="hello"):
    versions: tuple[U32, ...]
    client: str = ""


class Ping(Message, frozen=True, tag="ping"):
    id: U32


class Pong(Message, frozen=True, tag="pong"):
    id: U32


class Ack(Message, frozen=True, tag="ack"):
    """The receiver has consumed stream `s` up to offset `off`."""

    id: U32
    s: StreamNumber
    off: Offset


class Cancel(Message, frozen=True, tag="cancel"):
    id: U32


class Forget(Message, frozen=True, tag="forget"):
    keys: tuple[str, ...]


class Bye(Message, frozen=True, tag="bye"):
    """The client leaves."""


# --- commands ------------------------------------------------------------------------------------------------------
class Exec(Request, frozen=True, tag="exec"):
    key: str
    argv: tuple[bytes, ...] | None = None
    script: bytes | None = None
    cwd: bytes | None = None
    env: tuple[bytes, ...] = ()
    user: str | None = None
    stdin: bytes | None = None
    stdin_open: bool = False
    timeout_ms: U63 | None = None
    kill: KillScope = "tree"
    mode: Mode = "collect"
    cap_out: U63 = DEFAULT_CAP_BYTES
    cap_err: U63 = DEFAULT_CAP_BYTES
    keep: Keep = "both"
    merge: bool = False
    pty: tuple[U32, U32] | None = None
    login: bool = False
    done: tuple[str, ...] = ()


class Attach(Request, frozen=True, tag="attach"):
    key: str
    out_from: Offset = 0
    err_from: Offset = 0
    output: bool = True


class Stdin(Message, frozen=True, tag="stdin"):
    """Standard input for the command whose live call is `id`."""

    id: U32
    key: str
    off: Offset
    d: bytes = b""
    eof: bool = False


class Signal(Request, frozen=True, tag="signal"):
    key: str
    signal: U32
    to: SignalScope


class Resize(Request, frozen=True, tag="resize"):
    key: str
    rows: U32
    cols: U32


class ShellOpen(Request, frozen=True, tag="shell_open"):
    key: str
    program: bytes | None = None
    cwd: bytes | None = None
    env: tuple[bytes, ...] = ()
    user: str | None = None


class ShellRun(Request, frozen=True, tag="shell_run"):
    shell: str
    key: str
    script: bytes
    timeout_ms: U63 | None = None
    cap_out: U63 = DEFAULT_CAP_BYTES
    cap_err: U63 = DEFAULT_CAP_BYTES
    keep: Keep = "both"
    merge: bool = False


class ShellClose(Request, frozen=True, tag="shell_close"):
    shell: str


# --- files ---------------------------------------------------------------------------------------------------------
class Read(Request, frozen=True, tag="read"):
    path: bytes
    offset: Offset = 0
    limit: U63 | None = None
    user: str | None = None


class Write(Request, frozen=True, tag="write"):
    path: bytes
    mode: U32 | None = None
    parents: bool = True
    d: bytes = b""
    eof: bool = False
    user: str | None = None


class Stat(Request, frozen=True, tag="stat"):
    path: bytes
    follow: bool = True
    user: str | None = None


class ListFiles(Request, frozen=True, tag="list"):
    path: bytes
    recursive: bool = False
    limit: U63 | None = None
    user: str | None = None


class Mkdir(Request, frozen=True, tag="mkdir"):
    path: bytes
    parents: bool
    exist_ok: bool
    mode: U32 | None = None
    user: str | None = None


class Remove(Request, frozen=True, tag="remove"):
    path: bytes
    recursive: bool = False
    missing_ok: bool = False
    user: str | None = None


class Upload(Request, frozen=True, tag="upload"):
    path: bytes
    user: str | None = None


class Download(Request, frozen=True, tag="download"):
    path: bytes
    user: str | None = None


class Changes(Request, frozen=True, tag="changes"):
    path: bytes


class Data(Message, frozen=True, tag="data"):
    """Bytes of a transfer, either way: `off` counts the transfer's data, `at` is the position in the file of the last entry."""

    id: U32
    s: StreamNumber
    off: Offset
    d: bytes
    at: Offset | None = None


class Entry(Message, frozen=True, tag="entry"):
    """One file, directory or link of a tree, either way. `path` is relative to the root of the transfer; empty is the root."""

    id: U32
    path: bytes
    kind: EntryKind
    mode: U32 | None = None
    mtime_ns: U63 | None = None
    size: U63 | None = None
    target: bytes | None = None
    uid: U32 | None = None
    gid: U32 | None = None
    opaque: bool = False


class End(Message, frozen=True, tag="end"):
    """All data of an upload or a write has been sent."""

    id: U32


# --- the sandbox ---------------------------------------------------------------------------------------------------
class Usage(Request, frozen=True, tag="usage"):
    pass


class Processes(Request, frozen=True, tag="processes"):
    pass


class Quiesce(Request, frozen=True, tag="quiesce"):
    how: Literal["kill", "freeze", "thaw"]


class Reset(Request, frozen=True, tag="reset"):
    keep_results: bool = False


class RenewLease(Request, frozen=True, tag="renew"):
    """To the daemon of a leased pod; a host's `Renew` names a sandbox."""

    lease_ms: U63


# --- the host ------------------------------------------------------------------------------------------------------
class Image(Struct, frozen=True, omit_defaults=True):
    kind: Literal["host", "layers", "bare"]
    layers: tuple[bytes, ...] | None = None
    path: bytes | None = None


class Upper(Struct, frozen=True):
    kind: Literal["tmpfs", "disk"]
    size_bytes: U63
    inodes: U63 | None = None


class Limits(Struct, frozen=True, omit_defaults=True):
    memory_bytes: U63 | None = None
    cpu_millis: U63 | None = None
    pids: U63 | None = None


class Create(Request, frozen=True, tag="create"):
    name: str
    image: Image
    upper: Upper
    env: tuple[bytes, ...] = ()
    workdir: bytes | None = None
    user: str | None = None
    hostname: str = "sandbox"
    network: Literal["none", "host"] = "none"
    limits: Limits = Limits()
    limits_mode: Literal["require", "best-effort"] = "require"
    shm_bytes: U63 | None = None
    read_only: bool = False
    owner: Literal["attached", "leased"] = "attached"
    lease_ms: U63 | None = None
    idle_timeout_ms: U63 | None = None
    max_lifetime_ms: U63 | None = None
    labels: dict[str, str] = field(default_factory=dict)


class Enter(Request, frozen=True, tag="enter"):
    name: str


class Destroy(Request, frozen=True, tag="destroy"):
    name: str
    grace_ms: U63 = 0


class ListSandboxes(Request, frozen=True, tag="list"):
    pass


class Renew(Request, frozen=True, tag="renew"):
    name: str
    lease_ms: U63


class Watch(Request, frozen=True, tag="watch"):
    pass


class Probe(Request, frozen=True, tag="probe"):
    pass


Shared = Ping | Pong | Cancel | Bye | Hello
ToInit = (
    Shared | Ack | Forget | Exec | Attach | Stdin | Signal | Resize | ShellOpen | ShellRun | ShellClose
    | Read | Write | Stat | ListFiles | Mkdir | Remove | Upload | Download | Changes | Data | Entry | End
    | Usage | Processes | Quiesce | Reset | RenewLease
)  # fmt: skip
"""All that a client may say to the daemon in a sandbox."""
ToHost = Shared | Create | Enter | Destroy | ListSandboxes | Renew | Watch | Probe
"""All that a client may say to a host."""
