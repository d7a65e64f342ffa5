"""The examples that `generate.py` encodes: every message with few and with all fields, and frames that break the contract."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from sandlot.limits import MAX_FRAME_BYTES
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r

pack = msgspec.msgpack.encode

TO_INIT: dict[str, Any] = {
    "hello": r.Hello(versions=(1,), client="example"),
    "hello with a version nobody has yet": r.Hello(versions=(1, 900), client=""),
    "ping": r.Ping(id=4294967295),
    "pong": r.Pong(id=0),
    "ack": r.Ack(id=1, s=2, off=524288),
    "cancel": r.Cancel(id=1),
    "forget": r.Forget(keys=("k1", "k2")),
    "bye": r.Bye(),
    "exec script": r.Exec(id=1, key="k1", script=b"true"),
    "exec argv": r.Exec(id=2, key="k2", argv=(b"/bin/printf", b"%s", b"a b'\"$`\\\n\xff", b"")),
    "exec with every field": r.Exec(
        id=3, key="k" * 64, script=b"cat; pwd", cwd=b"/repo/\xc3\xa4", env=(b"A=l1\nl2", b"C=", b"GONE"), user="1000:1000",
        stdin=b"\x00\x01", stdin_open=True, timeout_ms=60000, kill="leader", mode="stream", cap_out=1048576, cap_err=0,
        keep="tail", merge=True, pty=(24, 80), login=True, done=("k0", "k1"),
    ),
    "exec job": r.Exec(id=4, key="job", argv=(b"sleep", b"1000"), mode="job"),
    "attach": r.Attach(id=5, key="k3"),
    "attach from offsets": r.Attach(id=6, key="k3", out_from=9223372036854775807, err_from=65536, output=False),
    "stdin": r.Stdin(id=3, key="k3", off=2, d=b"more\n"),
    "stdin end": r.Stdin(id=3, key="k3", off=7, eof=True),
    "signal": r.Signal(id=7, key="job", signal=15, to="group"),
    "resize": r.Resize(id=8, key="k3", rows=50, cols=200),
    "shell_open": r.ShellOpen(id=9, key="s1"),
    "shell_open with every field": r.ShellOpen(id=10, key="s2", program=b"/bin/dash", cwd=b"/", env=(b"A=1",), user="nobody"),
    "shell_run": r.ShellRun(id=11, shell="s1", key="k4", script=b"cd /tmp"),
    "shell_run with every field": r.ShellRun(
        id=12, shell="s1", key="k5", script=b"x=1", timeout_ms=1, cap_out=10, cap_err=20, keep="head", merge=True
    ),
    "shell_close": r.ShellClose(id=13, shell="s1"),
    "read": r.Read(id=14, path=b"/etc/passwd"),
    "read a part": r.Read(id=15, path=b"a", offset=4294967296, limit=10, user="root"),
    "write inline": r.Write(id=16, path=b"/a", d=b"hello", eof=True),
    "write with every field": r.Write(id=17, path=b"b/c", mode=0o755, parents=False, d=b"x", user="root"),
    "data up": r.Data(id=17, s=0, off=1, d=b"\x00" * 3),
    "data up at a position": r.Data(id=18, s=0, off=0, d=b"x", at=1099511627776),
    "end": r.End(id=17),
    "stat": r.Stat(id=19, path=b"/a"),
    "stat a link": r.Stat(id=20, path=b"/a", follow=False, user="root"),
    "list": r.ListFiles(id=21, path=b"."),
    "list with every field": r.ListFiles(id=22, path=b"/", recursive=True, limit=1000, user="root"),
    "mkdir": r.Mkdir(id=23, path=b"/d", parents=False, exist_ok=False),
    "mkdir with every field": r.Mkdir(id=24, path=b"/d/e", mode=0o700, parents=True, exist_ok=True, user="root"),
    "remove": r.Remove(id=25, path=b"/d"),
    "remove with every field": r.Remove(id=26, path=b"/d", recursive=True, missing_ok=True, user="root"),
    "upload": r.Upload(id=18, path=b"/repo"),
    "entry root": r.Entry(id=18, path=b"", kind="dir", mode=0o755),
    "entry file": r.Entry(id=18, path=b"a/b", kind="file", mode=0o644, mtime_ns=1, size=7, uid=0, gid=65534),
    "entry link": r.Entry(id=18, path=b"a/l", kind="link", target=b"../../etc/passwd"),
    "entry hard link": r.Entry(id=18, path=b"a/h", kind="hard", target=b"a/b"),
    "entry whiteout": r.Entry(id=18, path=b"a/w", kind="whiteout"),
    "entry gone": r.Entry(id=18, path=b"a/g", kind="gone"),
    "entry opaque": r.Entry(id=18, path=b"o", kind="dir", mode=0o2755, opaque=True),
    "download": r.Download(id=27, path=b"/repo", user="root"),
    "changes": r.Changes(id=28, path=b"/repo"),
    "usage": r.Usage(id=29),
    "processes": r.Processes(id=30),
    "quiesce": r.Quiesce(id=31, how="freeze"),
    "reset": r.Reset(id=32),
    "reset that keeps results": r.Reset(id=33, keep_results=True),
    "renew": r.RenewLease(id=34, lease_ms=60000),
}  # fmt: skip

FROM_INIT: dict[str, Any] = {
    "hello": a.Welcome(version=1, role="init"),
    "hello with every field": a.Welcome(
        version=1, role="init", daemon="sandlotd 0.1.0", name="sb-1", features=("pty",), mode="range-root", unenforced=("cpu",)
    ),
    "error": a.Error(id=1, code="not_found", message="no such file", errno=2, path=b"/x\xff"),
    "error of the connection": a.Error(id=0, code="protocol_error", message="frame of 0 bytes"),
    "error gone": a.Error(id=1, code="gone", message="out of memory", why="oom"),
    "error with a code nobody knows": a.Error(id=1, code="next_year"),
    "ping": r.Ping(id=7),
    "pong": r.Pong(id=7),
    "ack": r.Ack(id=3, s=0, off=5),
    "started": a.Started(id=4, pid=4194304),
    "out": a.Out(id=3, s=1, off=0, d=b"hello\xff"),
    "out on standard error": a.Out(id=3, s=2, off=9223372036854775807, d=b""),
    "gap": a.Gap(id=5, s=1, start=0, end=1048576),
    "exit": a.Exit(id=1, code=0, wall_us=250, user_us=100, sys_us=100, peak_bytes=1048576, spawn_us=90),
    "exit by a signal": a.Exit(id=1, signal=9, timed_out=True, oom=True, wall_us=1, unenforced=("memory",)),
    "exit with output": a.Exit(
        id=1, code=255, out=a.Kept(total=6, kept=6, head=6, d=b"hello\n"),
        err=a.Kept(total=3000000, kept=300000, head=150000, d=b"x"),
    ),
    "exit of a shell run": a.Exit(id=11, code=0, cwd=b"/tmp", alive=True),
    "data down": r.Data(id=14, s=1, off=0, d=b"root:x"),
    "data down at a position": r.Data(id=27, s=1, off=0, d=b"x", at=4096),
    "entry": r.Entry(id=27, path=b"a", kind="file", mode=0o600, mtime_ns=1700000000000000000, size=4097, uid=0, gid=0),
    "entries": a.Entries(
        id=21,
        entries=(a.Listed(path=b"a", kind="file", size=1, mode=0o644, mtime_ns=5), a.Listed(path=b"b", kind="dir")),
    ),
    "entries with a link": a.Entries(id=21, entries=(a.Listed(path=b"l", kind="link", target=b"/x"),)),
    "ok": a.Ok(id=23),
    "ok read": a.ReadOk(id=14, size=6, mode=0o644, mtime_ns=1700000000000000000),
    "ok write": a.WriteOk(id=16, size=5),
    "ok stat": a.StatOk(id=20, kind="link", size=9, mode=0o777, uid=1, gid=2, mtime_ns=3, target=b"/somewhere"),
    "ok list": a.ListOk(id=21, truncated=True),
    "ok transfer": a.TransferOk(id=18, files=1, dirs=2, links=3, data_bytes=4, skipped=(b"socket",)),
    "ok shell": a.ShellOk(id=9, pid=12, program=b"/bin/bash"),
    "ok usage": a.UsageOk(id=29, cpu_us=1, memory_bytes=2, memory_peak_bytes=3, pids=4, disk_bytes=5, oom_kills=0),
    "ok usage where nothing is known": a.UsageOk(id=29),
    "ok processes": a.ProcessesOk(
        id=30, processes=(a.Process(pid=7, ppid=1, uid=1000, state="S", name=b"sleep", argv=(b"sleep", b"9"), key="job"),)
    ),
    "ok reset": a.ResetOk(
        id=32, killed=3, changed_bytes=4096, took_us=900,
        verified=a.Verified(processes=True, files=True, mounts=True, ipc=True, hostname=True, network=False),
    ),
}  # fmt: skip

TO_HOST: dict[str, Any] = {
    "hello": r.Hello(versions=(1,), client="example"),
    "create": r.Create(
        id=1, name="sb-1", image=r.Image(kind="host"), upper=r.Upper(kind="tmpfs", size_bytes=1073741824, inodes=None)
    ),
    "create with every field": r.Create(
        id=2, name="sb-2", image=r.Image(kind="layers", layers=(b"/l/1", b"/l/2")),
        upper=r.Upper(kind="disk", size_bytes=1048576, inodes=1000), env=(b"PATH=/bin",), workdir=b"/app", user="1000",
        hostname="box", network="host", limits=r.Limits(memory_bytes=536870912, cpu_millis=1500, pids=100),
        limits_mode="best-effort", shm_bytes=67108864, read_only=True, owner="leased", lease_ms=60000, idle_timeout_ms=1,
        max_lifetime_ms=2, labels={"run": "r1"},
    ),
    "create for unpacking": r.Create(
        id=3, name="sb-3", image=r.Image(kind="bare", path=b"/cache/x"), upper=r.Upper(kind="disk", size_bytes=0)
    ),
    "enter": r.Enter(id=4, name="sb-1"),
    "destroy": r.Destroy(id=5, name="sb-1", grace_ms=1000),
    "list": r.ListSandboxes(id=6),
    "renew": r.Renew(id=7, name="sb-1", lease_ms=60000),
    "watch": r.Watch(id=8),
    "probe": r.Probe(id=9),
    "cancel": r.Cancel(id=8),
}  # fmt: skip

FROM_HOST: dict[str, Any] = {
    "hello": a.Welcome(version=1, role="host", daemon="sandlotd 0.1.0", name="host-1", mode="single"),
    "ok create": a.CreateOk(id=1, unenforced=("cpu",), spans={"clone_us": 700}),
    "ok destroy": a.DestroyOk(id=5, existed=False),
    "ok list": a.SandboxesOk(
        id=6,
        sandboxes=(
            a.SandboxRow(name="sb-1", owner="attached", pid=42, mode="single", created_ms=1700000000000, image="host"),
            a.SandboxRow(name="sb-2", owner="leased", lease_left_ms=0, labels={"run": "r1"}),
        ),
    ),
    "gone": a.Gone(id=8, name="sb-1", why="oom", detail="memory limit"),
    "ok probe": a.ProbeOk(
        id=9,
        mode="nested",
        facts={"kernel": "6.1"},
        missing=(a.Missing(what="newuidmap", why="not installed", remedy="uidmap"),),
    ),
    "error exists": a.Error(id=1, code="exists", message="sb-1 is alive"),
}

TOLERATED: list[tuple[str, str, str, bytes]] = [
    ("unknown fields are ignored", "init", "c2d", pack({"t": "ping", "id": 1, "later": {"a": [1, {"b": None}]}})),
    ("unknown fields are ignored", "init", "d2c", pack({"t": "pong", "id": 1, "later": {"a": [1, {"b": 1.5}]}})),
    ("nil is the default where that is nil", "init", "c2d",
     pack({"t": "exec", "id": 1, "key": "k", "script": b"x", "argv": None, "cwd": None})),
    ("the type may come last", "init", "c2d", pack({"id": 1, "t": "ping"})),
    ("numbers may be longer than they need be", "init", "d2c", b"\x82\xa1t\xa4pong\xa2id\xce\x00\x00\x00\x05"),
]  # fmt: skip


def good_examples() -> Iterator[tuple[str, str, str, Any]]:
    groups = (("init", "c2d", TO_INIT), ("init", "d2c", FROM_INIT), ("host", "c2d", TO_HOST), ("host", "d2c", FROM_HOST))
    for role, direction, group in groups:
        for name, message in group.items():
            yield name, role, direction, message
    yield from TOLERATED


def _frame(body: bytes, length: int | None = None) -> bytes:
    return (len(body) if length is None else length).to_bytes(4, "big") + body


def _nested(levels: int) -> Any:
    value: Any = None
    for _ in range(levels):
        value = [value]
    return value


_FRAMING: list[tuple[str, bytes]] = [
    ("a frame of no bytes", _frame(b"")),
    ("a frame longer than the limit", _frame(b"", MAX_FRAME_BYTES + 1)),
    ("a frame of 4 GiB", b"\xff\xff\xff\xff"),
    ("not a map", _frame(pack([1, 2]))),
    ("not MessagePack", _frame(b"\xc1")),
    ("a map cut short", _frame(pack({"t": "ping", "id": 1})[:-1])),
    ("bytes after the map", _frame(pack({"t": "ping", "id": 1}) + b"\x00")),
    ("two maps in one frame", _frame(pack({"t": "ping", "id": 1}) * 2)),
    ("no type", _frame(pack({"id": 1}))),
    ("a type that is no text", _frame(pack({"t": 5, "id": 1}))),
    ("a key that is no text", _frame(pack({"t": "ping", "id": 1, 7: 1}))),
    ("a declared length beyond the frame", _frame(b"\x82\xa1t\xa4ping\xa2id\xdb\xff\xff\xff\xff")),
    ("an array of four thousand million", _frame(b"\x83\xa1t\xa4ping\xa2id\x01\xa1x\xdd\xff\xff\xff\xff")),
    ("five levels", _frame(pack({"t": "ping", "id": 1, "x": _nested(4)}))),
    ("a thousand levels", _frame(b"\x83\xa1t\xa4ping\xa2id\x01\xa1x" + b"\x91" * 1_000 + b"\xc0")),
    ("an id beyond 32 bits", _frame(pack({"t": "ping", "id": 2**32}))),
    ("a negative id", _frame(pack({"t": "ping", "id": -1}))),
    ("a type that is not UTF-8", _frame(b"\x82\xa1t\xa1\xff\xa2id\x01")),
]

_TO_INIT: list[tuple[str, bytes, str]] = [
    ("an unknown type with an id", _frame(pack({"t": "next_year", "id": 1})), "unknown_message"),
    ("a host's message in a sandbox", _frame(pack({"t": "probe", "id": 1})), "unknown_message"),
    ("exec with neither argv nor script", _frame(pack({"t": "exec", "id": 1, "key": "k"})), "bad_request"),
    ("exec with both", _frame(pack({"t": "exec", "id": 1, "key": "k", "argv": [b"a"], "script": b"a"})), "bad_request"),
    ("exec with an empty argv", _frame(pack({"t": "exec", "id": 1, "key": "k", "argv": []})), "bad_request"),
    ("exec with NUL in argv", _frame(pack({"t": "exec", "id": 1, "key": "k", "argv": [b"a\0b"]})), "bad_request"),
    ("exec with an empty key", _frame(pack({"t": "exec", "id": 1, "key": "", "script": b"a"})), "bad_request"),
    ("exec with a key too long", _frame(pack({"t": "exec", "id": 1, "key": "k" * 65, "script": b"a"})), "bad_request"),
    ("exec with id 0", _frame(pack({"t": "exec", "id": 0, "key": "k", "script": b"a"})), "protocol_error"),
    ("attach to an unknown key", _frame(pack({"t": "attach", "id": 1, "key": "nobody"})), "no_such_key"),
    ("read with NUL in the path", _frame(pack({"t": "read", "id": 1, "path": b"/a\0"})), "bad_request"),
    ("a path too long", _frame(pack({"t": "stat", "id": 1, "path": b"/" + b"a" * 4096})), "name_too_long"),
    ("a number where text is meant", _frame(pack({"t": "exec", "id": 1, "key": 5, "script": b"a"})), "protocol_error"),
    ("hello again", _frame(pack({"t": "hello", "versions": [1], "client": ""})), "protocol_error"),
]  # fmt: skip

_FROM_INIT: list[tuple[str, bytes]] = [
    ("a stream number that is none", _frame(pack({"t": "out", "id": 1, "s": 3, "off": 0, "d": b""}))),
    ("a negative offset", _frame(pack({"t": "out", "id": 1, "s": 1, "off": -1, "d": b""}))),
    ("an offset beyond 63 bits", _frame(pack({"t": "out", "id": 1, "s": 1, "off": 2**63, "d": b""}))),
    ("text where bytes are meant", _frame(pack({"t": "out", "id": 1, "s": 1, "off": 0, "d": "text"}))),
    ("an exit code beyond a byte", _frame(pack({"t": "exit", "id": 1, "code": 256}))),
    ("a number where text is meant", _frame(pack({"t": "error", "id": 1, "code": 5}))),
    ("an entry of an unknown kind", _frame(pack({"t": "entry", "id": 1, "path": b"a", "kind": "char"}))),
]


def bad_examples() -> Iterator[tuple[str, str, str, bytes, str]]:
    for name, raw in _FRAMING:
        yield name, "init", "c2d", raw, "protocol_error"
        yield name, "init", "d2c", raw, "protocol_error"
    for name, raw, code in _TO_INIT:
        yield name, "init", "c2d", raw, code
    for name, raw in _FROM_INIT:
        yield name, "init", "d2c", raw, "protocol_error"
