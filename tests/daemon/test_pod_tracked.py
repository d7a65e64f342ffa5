"""Containers without namespaces of our own: what was changed is put back and the rest proved unchanged, or nothing is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import outside
from tests.daemon.containers import Container, Volume, Wanted, running
from tests.daemon.test_pod_reset import changed
from tests.daemon.wire import Box

SHOW = """
    find /home /tmp /var/tmp /dev /run ! -path /tmp -prune -o -print 2>/dev/null | sort
    find /home/app -exec stat -c '%n %A %u %g %s %Y' {} + | sort; find /home/app -type f -exec sha256sum {} + | sort
    cat /proc/sysvipc/shm /proc/sysvipc/sem /proc/sysvipc/msg | grep -vc key; ls -A /tmp /var/tmp /dev/shm /dev/mqueue
"""

OWNERS = "find /root /tmp -exec stat -c '%n %A %u %g' {} + | sort; cat /proc/sysvipc/shm"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def restricted(stack: ExitStack, scratch: Path, **more: Any) -> tuple[Container, Box]:
    """A container as in a pod under the level `restricted`, with a directory of its user's, and a link to it."""
    home = scratch / "home"
    (home / "src").mkdir(parents=True)
    (home / "src" / "main.py").write_text("print(1)\n")
    (home / ".profile").write_text("export A=1\n")
    for path in (home, *home.rglob("*")):
        os.chown(path, 1000, 1000)
    fields: dict[str, Any] = {"user": (1000, 1000), "capabilities": (), "no_new_privs": True, "cwd": "/home/app"}
    wanted = Wanted(volumes=(Volume(home, "/home/app"),), **{**fields, **more})
    container = stack.enter_context(running(wanted))
    return container, container.open()


def as_root(stack: ExitStack) -> Box:
    wanted = Wanted(env={"SANDLOT_RESET": "tracked"})
    return stack.enter_context(running(wanted)).open()


def test_a_user_without_rights_is_reset(stack: ExitStack, tmp_path: Path) -> None:
    """Home, temporary files, shared memory and processes, again and again, and each part is verified."""
    _, box = restricted(stack, tmp_path)
    assert "reset-tracked" in box.greeting["features"]
    before = box.text(SHOW)
    for _ in range(3):
        box.run("""
            echo x > new; mkdir -p a/b; echo y > a/b/c; chmod 0 a/b; echo z > /tmp/file; mkdir /tmp/d; echo s > /dev/shm/s
            echo more >> .profile; rm -r src; echo no directory > src; (sleep 1000 &)
        """)
        assert box.text(SHOW) != before
        done = box.call(t="reset")
        assert done["t"] == "ok", done
        assert all(done["verified"].values()), done
        assert done["killed"] >= 1
        assert box.text(SHOW) == before
        assert changed(box, b"/") == {}


def test_what_a_user_changed_is_told(stack: ExitStack, tmp_path: Path) -> None:
    """In the working directory, and in everything, where nothing else was changed."""
    _, box = restricted(stack, tmp_path)
    box.run("echo new > new; mkdir d; echo t > /tmp/t")
    assert changed(box, b"/home/app") == {"": "dir", "new": "file", "d": "dir"}
    told = changed(box)
    assert {path for path, kind in told.items() if kind == "file"} == {"home/app/new", "tmp/t"}


def test_root_is_reset_where_it_kept_to_its_places(stack: ExitStack) -> None:
    """Other owners included; System V memory and queues are gone as well."""
    box = as_root(stack)
    assert "reset-tracked" in box.greeting["features"]
    before = box.text(OWNERS)
    box.run("echo x > /root/x; touch /tmp/theirs; chown 1234:43 /tmp/theirs; touch /dev/mqueue/queue")
    done = box.call(t="reset")
    assert done["t"] == "ok", done
    assert all(done["verified"].values()), done
    assert box.text(OWNERS) == before
    assert box.text("ls /dev/mqueue") == ""


@pytest.mark.parametrize("change", ["echo x >> /etc/passwd", "rm /etc/group", "ln /etc/passwd /root/link", "mkdir /etc/new"])
def test_what_cannot_be_put_back_is_refused(stack: ExitStack, change: str) -> None:
    """Nobody kept it, so neither a reset nor a list of what changed is claimed to be whole."""
    box = as_root(stack)
    assert box.code(f"mkdir -p /tmp/a && {change}") == 0
    refused = box.call(t="changes", path=b"/")
    assert refused["code"] == "unsupported", refused
    assert changed(box, b"/tmp") == {"": "dir", "a": "dir"}
    refused = box.call(t="reset")
    assert (refused["t"], refused["code"]) == ("error", "unsupported"), refused


def test_whoever_entered_from_outside_is_in_the_way(stack: ExitStack, tmp_path: Path) -> None:
    """It is not killed, and could change something at any time."""
    container, box = restricted(stack, tmp_path)
    words = ["runc", "--root", str(container.folder / "state"), "exec", container.name, "sleep", "1000"]
    visitor = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        listed = "ps -o args | grep -c '^slee[p] 1000'"
        outside.wait_until(lambda: box.text(listed) == "1", "somebody has entered")
        assert box.call(t="reset")["code"] == "unsupported"
    finally:
        visitor.kill()
        visitor.wait()


def test_a_user_who_may_gain_rights_is_not_reset(stack: ExitStack, tmp_path: Path) -> None:
    """What a set-user-id program did might be where its user cannot look."""
    _, box = restricted(stack, tmp_path, no_new_privs=False)
    assert not {feature for feature in box.greeting["features"] if feature.startswith("reset-")}
    assert box.call(t="reset")["code"] == "unsupported"
