"""Files of real sandboxes, over the wire: large streams, links that break, what changed, what may not be read."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import outside
from tests.daemon.conftest import MakeBox
from tests.daemon.wire import Box, Host, Message

WINDOW = 1 << 20
CHUNK = 1 << 18
GIB = 1 << 30


class Call:
    """One file call with its flow control, in either direction."""

    def __init__(self, box: Box, kind: str, path: str, **fields: Any) -> None:
        self.box = box
        self.id = Call.last = Call.last + 1
        self._sent = self._acknowledged = 0
        box.send(t=kind, id=self.id, path=path.encode(), **fields)

    last = 1_000_000

    def up(self, data: bytes, at: int | None = None) -> None:
        """Data within the window."""
        while self._sent + len(data) > self._acknowledged + WINDOW:
            answer = self.box.receive()
            assert answer["t"] == "ack", answer
            self._acknowledged = answer["off"]
        self.box.send(t="data", id=self.id, s=0, off=self._sent, d=data, at=at)
        self._sent += len(data)

    def entry(self, path: str, kind: str, **fields: Any) -> None:
        self.box.send(t="entry", id=self.id, path=path.encode(), kind=kind, **fields)

    def end(self) -> Message:
        self.box.send(t="end", id=self.id)
        return self.answer()

    def answer(self) -> Message:
        while (message := self.box.receive())["t"] == "ack":
            pass
        return message

    def down(self) -> Iterator[Message]:
        """Everything up to the answer, which comes last; data is acknowledged."""
        received = 0
        while True:
            message = self.box.receive()
            if message["t"] == "data":
                assert message["off"] == received
                received += len(message["d"])
                if received - self._acknowledged >= WINDOW // 2:
                    self._acknowledged = received
                    self.box.send(t="ack", id=self.id, s=1, off=received)
            yield message
            if message["t"] in ("ok", "error"):
                return


def write(box: Box, path: str, data: bytes) -> None:
    answer = Call(box, "write", path, d=data, eof=True).answer()
    assert answer["t"] == "ok", answer


def tree(box: Box, kind: str, path: str) -> list[str]:
    """Kind and path of each entry of a download or of changes, sorted by path."""
    *messages, answer = Call(box, kind, path).down()
    assert answer["t"] == "ok", answer
    entries = sorted((m["path"], m["kind"]) for m in messages if m["t"] == "entry")
    return [f"{kind} {os.fsdecode(path)}" for path, kind in entries]


def init_of(host: Host) -> int:
    """The init of a host's only sandbox."""
    (entry,) = host.ask(t="list")["sandboxes"]
    pid: int = entry["pid"]
    return pid


def memory_kib(pid: int) -> int:
    """Peak of resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))


@pytest.mark.parametrize("size", [28 << 20, GIB], ids=["28MiB", "1GiB"])
def test_large_files_go_up_and_come_down_in_flat_memory(host: Host, make: MakeBox, size: int) -> None:
    """The same bytes come back, by digest on both ways and inside, and the daemon never holds more than a few windows."""
    box = make(upper={"kind": "tmpfs", "size_bytes": 2 * GIB})
    pattern = random.Random(size).randbytes(CHUNK - 1)  # its period never meets the chunks'
    digest, call, left = hashlib.sha256(), Call(box, "write", "/tmp/large"), size
    while left:
        piece = pattern[:left]
        digest.update(piece)
        call.up(piece)
        left -= len(piece)
    assert call.end()["size"] == size
    back, answer = hashlib.sha256(), {}
    for answer in Call(box, "read", "/tmp/large").down():
        back.update(answer.get("d", b""))
    assert (answer["t"], answer["size"], back.hexdigest()) == ("ok", size, digest.hexdigest())
    assert box.text("sha256sum < /tmp/large").split()[0] == digest.hexdigest()
    assert memory_kib(init_of(host)) < 12 * 1024


@pytest.mark.parametrize("kind", ["write", "upload"])
def test_lost_link_in_the_middle_leaves_nothing(host: Host, make: MakeBox, kind: str) -> None:
    """The old file stays as it was and no part of the new one is left, under any name."""
    box = make(owner="leased", lease_ms=60_000)
    box.text("mkdir /w; echo old > /w/f")
    call = Call(box, kind, "/w/f" if kind == "write" else "/w")
    if kind == "upload":
        call.entry("f", "file", size=64 << 20)
    for _ in range(20):
        call.up(os.urandom(CHUNK))
    other = host.enter(box.name)
    assert other.text("ls -A /w | wc -l") == "2"
    box.close()
    outside.wait_until(lambda: other.text("ls -A /w; cat /w/f") == "f\nold", "only the old file is left")
    other.close()


def test_cancelled_write_leaves_nothing(box: Box) -> None:
    """Cancelled in the middle, the call says so and the directory made for the file is gone too."""
    call = Call(box, "write", "/new/dir/f")
    call.up(os.urandom(CHUNK))
    box.send(t="cancel", id=call.id)
    assert call.answer()["code"] == "cancelled"
    assert box.text("ls -d /new 2>/dev/null") == ""


def test_reset_in_the_middle_of_a_transfer(box: Box) -> None:
    """Transfers end as cancelled, the reset goes through and is verified, and files can be written again."""
    call = Call(box, "write", "/tmp/f")
    call.up(os.urandom(CHUNK))
    box.send(t="reset", id=7)
    answers = [call.answer(), call.answer()]
    assert sorted((a["id"], a["t"], a.get("code")) for a in answers) == [(7, "ok", None), (call.id, "error", "cancelled")]
    (done,) = [a for a in answers if a["t"] == "ok"]
    assert all(done["verified"].values()), done
    write(box, "/tmp/f", b"again")
    assert box.text("ls -A /tmp; cat /tmp/f") == "f\nagain"


def test_daemons_own_memory_cannot_be_read_through_it(box: Box) -> None:
    """Not by name, not by a link that code inside has left, not as a list or a download; other processes' entries can."""
    box.text("ln -s /proc/1/mem /tmp/mem; ln -s /proc/self /tmp/self; ln -s /proc/1/task/1/environ /tmp/environ")
    for path in ("/proc/1/mem", "/proc/self/maps", "/tmp/mem", "/tmp/self/environ", "/tmp/environ"):
        *_, answer = Call(box, "read", path).down()
        assert answer["code"] == "permission", (path, answer)
    for kind in ("list", "download"):
        *_, answer = Call(box, kind, "/proc/1").down()
        assert answer["t"] == "error", (kind, answer)
    assert tree(box, "download", "/tmp") == ["dir ", "link environ", "link mem", "link self"]


def test_host_image_changes_are_exact_in_every_overlay(box: Box) -> None:
    """A fresh sandbox has none; below / and below /usr each change is told once, with what was removed; mounts are named."""
    assert tree(box, "changes", "/") == []
    box.text("echo x > /etc/new; echo '#' >> /etc/passwd; rm /usr/bin/env; mkdir /usr/lib/made; cat /usr/bin/sh > /dev/null")
    assert tree(box, "changes", "/usr") == ["dir ", "dir bin", "gone bin/env", "dir lib", "dir lib/made"]
    *messages, answer = Call(box, "changes", "/").down()
    paths = [m["path"].decode() for m in messages if m["t"] == "entry"]
    assert sorted(paths) == ["", "etc", "etc/new", "etc/passwd", "usr", "usr/bin", "usr/bin/env", "usr/lib", "usr/lib/made"]
    assert {b"proc", b"sys", b"dev"} <= set(answer["skipped"])
    assert tree(box, "changes", "/bin/env") == ["gone "]
    (error,) = Call(box, "changes", "/dev/shm").down()
    assert error["code"] == "unsupported"


@pytest.mark.parametrize("kind", ["tmpfs", "disk"])
def test_changes_applied_to_a_twin_make_it_the_same(make: MakeBox, tmp_path: Path, kind: str) -> None:
    """Layers with a whiteout below; files, links, modes, owners and removals all arrive in a sandbox of the same image."""
    for name, content in {"low/repo/a": "a", "low/repo/gone/x": "x", "low/repo/dir/y": "y", "high/repo/b": "b"}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    os.mknod(tmp_path / "high/repo/gone", 0o020000, 0)
    image = {"kind": "layers", "layers": [os.fsencode(tmp_path / name) for name in ("low", "high")]}
    upper = {"kind": kind, "size_bytes": 1 << 26}
    first, twin = (make(image=image, upper=upper, limits_mode="best-effort") for _ in range(2))
    assert tree(first, "changes", "/repo") == []
    write(first, "/repo/gone/new", b"made again")
    for removed in ("/repo/b", "/repo/dir"):
        assert Call(first, "remove", removed, recursive=removed == "/repo/dir").answer()["t"] == "ok"
    call = Call(first, "upload", "/repo")
    call.entry("dir", "file", size=3, mode=0o4750, uid=1000, gid=1000, mtime_ns=5)
    call.up(b"new")
    call.entry("l", "link", target=b"../../etc")
    assert call.end()["t"] == "ok"
    *messages, answer = Call(first, "changes", "/repo").down()
    assert answer["t"] == "ok", answer
    call = Call(twin, "upload", "/repo")
    for message in messages:
        if message["t"] == "entry":
            call.box.send(**{**message, "id": call.id})
        else:
            call.up(message["d"], message["at"])
    assert call.end()["t"] == "ok"
    listings = []
    for box in (first, twin):
        *pages, answer = Call(box, "list", "/repo", recursive=True).down()
        assert answer["t"] == "ok", answer
        listings.append(sorted((e for page in pages for e in page["entries"]), key=lambda entry: entry["path"]))
    assert listings[0] == listings[1]
    assert [entry["path"] for entry in listings[0]] == [b"a", b"dir", b"gone", b"gone/new", b"l"]
    stat = Call(twin, "stat", "/repo/dir").answer()
    assert [stat[name] for name in ("mode", "uid", "gid", "mtime_ns")] == [0o4750, 1000, 1000, 5]


def test_bare_root_takes_whiteouts_opaque_directories_and_owners(make: MakeBox, tmp_path: Path) -> None:
    """What is unpacked into a bare sandbox is a layer: an overlay over it hides what the layer says."""
    below, layer = tmp_path / "below", tmp_path / "layer"
    for path in (below / "d/hidden", below / "removed"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    layer.mkdir()
    box = make(image={"kind": "bare", "path": os.fsencode(layer)})
    call = Call(box, "upload", "/")
    call.entry("", "dir", mode=0o755)
    call.entry("d", "dir", mode=0o755, opaque=True)
    call.entry("d/shown", "file", mode=0o4755, uid=65534, gid=33)
    call.entry("removed", "whiteout")
    call.entry("hard", "hard", target=b"d/shown")
    assert call.end()["t"] == "ok"
    box.close()
    image = {"kind": "layers", "layers": [os.fsencode(below), os.fsencode(layer)]}
    box = make(image=image)
    names = {
        name for name in tree(box, "download", "/") if name.split()[-1] not in ("", "dev", "etc", "proc", "run", "sys", "tmp")
    }
    assert {"dir d", "file d/shown"} <= names
    assert not {"file removed", "file d/hidden"} & names
    stat = Call(box, "stat", "/d/shown").answer()
    assert [stat[name] for name in ("mode", "uid", "gid")] == [0o4755, 65534, 33]


def test_full_disk_is_an_error_and_frees_what_it_took(make: MakeBox) -> None:
    """Neither a write nor an upload beyond the sandbox's disk leaves a part; the space is there again at once."""
    box = make(upper={"kind": "tmpfs", "size_bytes": 8 << 20})
    for kind in ("write", "upload"):
        call = Call(box, kind, "/t/f")
        if kind == "upload":
            call.entry("", "file", size=16 << 20)
        answer: Message = {"t": "ack", "off": 0}
        sent = 0
        while answer["t"] == "ack":
            while sent < answer["off"] + WINDOW:
                box.send(t="data", id=call.id, s=0, off=sent, d=bytes(CHUNK))
                sent += CHUNK
            answer = box.receive()
        assert (answer["code"], answer["errno"]) == ("no_space", 28)
        assert box.text("ls -A /t 2>/dev/null") == ""
    write(box, "/t/f", bytes(CHUNK))
