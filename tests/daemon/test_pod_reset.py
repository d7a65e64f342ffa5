"""Episodes inside of a container that runc has made: what a reset undoes, and that commands see what they would without."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.containers import Volume, Wanted, running
from tests.daemon.wire import Box

OVERLAY = {"SANDLOT_RESET": "overlay"}


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(stack: ExitStack, **wanted: Any) -> Box:
    return stack.enter_context(running(Wanted(env=OVERLAY, **wanted))).open()


def changed(box: Box, path: bytes = b"/") -> dict[str, str]:
    """What differs from the image below a path: kinds by name."""
    box.send(t="changes", id=901, path=path)
    told: dict[str, str] = {}
    while (message := box.receive())["t"] != "ok":
        assert message["t"] != "error", message
        if message["t"] == "entry":
            told[message["path"].decode()] = message["kind"]
        elif message["t"] == "data":
            box.send(t="ack", id=901, s=1, off=message["off"] + len(message["d"]))
    return told


def test_a_reset_undoes_everything(stack: ExitStack) -> None:
    """Files everywhere, the kubelet's own ones included, processes, shared memory: each part verified, again and again."""
    box = start(stack)
    assert "reset-overlay" in box.greeting["features"]
    before = box.text("cat /etc/hosts /etc/passwd; ls / /etc /tmp /dev /dev/shm; hostname")
    for _ in range(3):
        box.run("echo 6.6.6.6 evil >> /etc/hosts; rm /etc/passwd; rm -rf /bin; (sleep 1000 &)")
        box.send(t="exec", id=900, key=f"job-{_}", argv=[b"busybox", b"true"])
        assert box.receive()["code"] == 127, "its /bin is gone"
        done = box.call(t="reset")
        assert done["t"] == "ok", done
        assert all(done["verified"].values()), done
        assert done["killed"] >= 1
        assert box.text("cat /etc/hosts /etc/passwd; ls / /etc /tmp /dev /dev/shm; hostname") == before
        box.run("touch /root/a /tmp/b /dev/shm/c /dev/d /new; mkdir -p /etc/x/y")


def test_commands_see_what_they_would_without_episodes(stack: ExitStack) -> None:
    """The same text from a container that cannot be reset and from one that can."""
    script = """
        id; hostname; pwd; umask; cat /etc/hosts /etc/resolv.conf /etc/hostname
        stat -c '%n %A %u %g' / /* /etc/* /bin/busybox /dev/shm /dev/null; ls /dev; ls /sys /proc/self/
        cat /proc/self/uid_map /proc/sys/kernel/pid_max; ulimit -a; head -c 3 /dev/zero | od; ls /sandlot
        grep -E 'Cap(Prm|Eff|Bnd|Amb)|NoNewPrivs|Groups' /proc/self/status
        touch /tmp/x && chown 1234:43 /tmp/x && stat -c '%u %g' /tmp/x
    """
    plain = stack.enter_context(running(Wanted(env={"SANDLOT_RESET": "none"}, groups=(2000,)))).open()
    episode = start(stack, groups=(2000,))
    assert "reset-overlay" in episode.greeting["features"]
    assert episode.text(script).splitlines() == plain.text(script).splitlines()
    assert episode.text("id", user="nobody") == plain.text("id", user="nobody")


def test_more_is_taken_from_commands_where_more_can_be(stack: ExitStack) -> None:
    """The filter of system calls stands, although set-user-ID programs go on working."""
    box = start(stack)
    assert box.text("grep -E '^(Seccomp|NoNewPrivs):' /proc/self/status").split() == ["NoNewPrivs:", "0", "Seccomp:", "2"]
    assert box.code("unshare -U true") != 0
    assert box.code("mount -t tmpfs none /mnt") != 0


def test_changes_are_told_exactly(stack: ExitStack) -> None:
    """What was made, changed and removed, in the root's own files and in directories with overlays of their own."""
    box = start(stack)
    box.run("echo new > /root/new; rm /etc/group; echo more >> /etc/passwd; mkdir /home/d; cat /etc/hosts > /dev/null")
    told = changed(box)
    files = {path: kind for path, kind in told.items() if kind != "dir"}
    assert files == {"root/new": "file", "etc/group": "gone", "etc/passwd": "file"}
    assert told["home/d"] == "dir"


def test_directories_of_etc_can_be_removed_and_renamed(stack: ExitStack) -> None:
    """Although the kubelet's files are mounted beside them; what is told is exact, and undone."""
    box = start(stack, image="debian")
    before = box.text("find /etc | sort; find /etc -type f ! -name hostname -exec sha256sum {} + | sort")
    assert box.code("rm -r /etc/skel && mv /etc/alternatives /etc/others && rmdir /etc/opt && mkdir /etc/new") == 0
    told = changed(box, b"/etc")
    assert (told["skel"], told["alternatives"], told["opt"]) == ("gone", "gone", "gone")
    assert (told["others"], told["new"]) == ("dir", "dir")
    assert {path.partition("/")[0] for path in told} == {"", "skel", "alternatives", "others", "opt", "new"}
    assert all(box.call(t="reset")["verified"].values())
    assert changed(box, b"/etc") == {}
    assert box.text("find /etc | sort; find /etc -type f ! -name hostname -exec sha256sum {} + | sort") == before


def test_files_have_as_much_room_as_was_asked_for(stack: ExitStack) -> None:
    """What does not fit is an ordinary error, removing makes room, and numbers say so; memory bounds what may be asked."""
    asked = {**OVERLAY, "SANDLOT_DISK_BYTES": str(8 << 20)}
    box = stack.enter_context(running(Wanted(env=asked, memory_bytes=256 << 20))).open()
    assert box.call(t="usage")["disk_limit_bytes"] == 8 << 20
    end = box.run("dd if=/dev/zero of=/big bs=1000000 count=20")
    assert end["code"] != 0
    assert b"No space left" in end["err"]["d"]
    assert box.text("rm /big && echo x > /small && cat /small") == "x"
    more = {**OVERLAY, "SANDLOT_DISK_BYTES": str(1 << 40)}
    box = stack.enter_context(running(Wanted(env=more, memory_bytes=256 << 20))).open()
    assert box.call(t="usage")["disk_limit_bytes"] == 128 << 20


def test_volumes_stay_and_empty_ones_are_emptied(stack: ExitStack, tmp_path: Path) -> None:
    """A read-only volume is there in every episode; a scratch volume is as empty as it was at the start."""
    given, scratch = tmp_path / "given", tmp_path / "scratch"
    given.mkdir()
    scratch.mkdir(mode=0o755)
    (given / "file").write_text("given\n")
    volumes = (Volume(given, "/given", ("ro",)), Volume(scratch, "/scratch"))
    box = start(stack, volumes=volumes)
    for _ in range(2):
        assert box.text("cat /given/file; ls -A /scratch") == "given"
        assert box.code("echo x > /given/file") != 0
        assert box.code("echo x > /scratch/file") == 0
        assert all(box.call(t="reset")["verified"].values())
    assert list(scratch.iterdir()) == []


def test_a_volume_with_something_in_it_rules_a_reset_out(stack: ExitStack, tmp_path: Path) -> None:
    """Nobody could undo what is done to it, so none is promised, and the container serves as it is."""
    (tmp_path / "file").write_text("precious\n")
    box = start(stack, volumes=(Volume(tmp_path, "/data"),))
    assert "reset-overlay" not in box.greeting["features"]
    assert box.text("cat /data/file") == "precious"
    assert box.call(t="reset")["code"] == "unsupported"


def test_a_read_only_root_stays_read_only(stack: ExitStack, tmp_path: Path) -> None:
    """Only its volumes can be written, before and after a reset."""
    box = start(stack, read_only=True, volumes=(Volume(tmp_path, "/tmp"),))
    for _ in range(2):
        assert box.code("touch /root/x") != 0
        assert box.code("touch /x") != 0
        assert box.code("touch /tmp/x") == 0
        assert all(box.call(t="reset")["verified"].values())


def test_an_image_without_anything_is_reset(stack: ExitStack) -> None:
    """No shell, no /tmp, no /etc of its own."""
    box = start(stack, image="static")
    box.send(t="exec", id=900, key="a", argv=[b"tool", b"echo", b"here"])
    assert box.receive()["out"]["d"] == b"here\n"
    assert all(box.call(t="reset")["verified"].values())
    box.send(t="exec", id=901, key="b", argv=[b"tool", b"echo", b"again"])
    assert box.receive()["out"]["d"] == b"again\n"


@pytest.mark.parametrize("wanted", ["auto", "overlay"])
def test_without_the_rights_it_serves_as_it_is(stack: ExitStack, wanted: str) -> None:
    """One user that is not root cannot have namespaces in which everybody keeps his id: no reset is promised."""
    container = running(Wanted(image="nonroot", user=(1000, 1000), env={"SANDLOT_RESET": wanted}))
    box = stack.enter_context(container).open()
    assert not {feature for feature in box.greeting["features"] if feature.startswith("reset-")}
    assert box.text("id -u") == "1000"
