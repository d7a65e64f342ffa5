"""The daemon as the first process of containers that runc makes from unmodified images, as a kubelet would have them made."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

import pytest

from sandlot.daemon_binary import find_daemon
from tests.daemon import outside
from tests.daemon.containers import Container, Wanted, running


class Start(Protocol):
    """Starts a container that is removed after the test."""

    def __call__(self, wanted: Wanted, /) -> Container: ...


@pytest.fixture
def start() -> Iterator[Start]:
    if os.geteuid() != 0:
        pytest.fail("containers are made here by root")
    with ExitStack() as stack:
        yield lambda wanted: stack.enter_context(running(wanted))


def test_a_container_serves_commands(start: Start) -> None:
    """The first connection finds a daemon that runs a shell of the image, and says what it is."""
    container = start(Wanted(cwd="/tmp"))
    box = container.open()
    assert (box.greeting["mode"], box.greeting["name"]) == ("pod", container.name)
    assert box.text("pwd; hostname; id -u") == "/tmp\npod\n0"


def test_commands_get_the_images_environment_and_no_secret(start: Start) -> None:
    """Neither what the daemon was told nor what the cluster adds reaches a command, and the daemon's own copy is wiped."""
    container = start(Wanted(env={"SANDLOT_OTHER": "one-time-secret", "FROM_SPEC": "yes"}))
    box = container.open()
    names = {line.partition("=")[0] for line in box.text("env").splitlines()}
    assert {"PATH", "FROM_SPEC"} <= names
    assert not any(name.startswith(("SANDLOT_", "KUBERNETES_")) for name in names)
    assert box.code("cat /proc/1/environ") != 0
    assert b"one-time-secret" not in Path(f"/proc/{container.pid()}/environ").read_bytes()


def test_root_may_become_the_users_of_the_image(start: Start) -> None:
    """By name and number, with their own groups; the default user keeps the groups that the pod gave."""
    box = start(Wanted(groups=(2000,))).open()
    assert box.text("id -u; id -G") == "0\n0 2000"
    assert box.text("id -u; id -G", user="nobody") == "65534\n65534 10"
    assert box.text("id -u; id -g", user="4242:43") == "4242\n43"
    assert box.run("true", user="ghost")["code"] == "user_unknown"
    assert box.text("touch /tmp/mine && chown 1234 /tmp/mine && stat -c %u /tmp/mine") == "1234"


def test_an_unprivileged_container_is_only_its_own_user(start: Start) -> None:
    """Another user is refused with an error of its own; files are written as the one user that there is."""
    box = start(Wanted(image="nonroot", user=(1000, 1000), groups=(3000,), cwd="/tmp")).open()
    assert box.text("id -u; id -G") == "1000\n1000 3000"
    assert box.run("true", user="0:0")["code"] == "user_unsupported"
    assert box.text("id -u", user="1000:1000") == "1000"


def test_root_without_its_rights_is_only_root(start: Start) -> None:
    """A pod that drops every capability still serves commands, as the only user that it can be."""
    box = start(Wanted(capabilities=(), no_new_privs=True)).open()
    assert box.text("id -u") == "0"
    assert box.run("true", user="nobody")["code"] == "user_unsupported"
    assert box.text("grep -E 'CapEff|Seccomp:' /proc/self/status").split() == ["CapEff:", "0" * 16, "Seccomp:", "2"]


def test_commands_lose_what_reaches_beyond_the_container(start: Start) -> None:
    """No raw sockets and no devices, also for what root executes later; set-user-ID programs go on working."""
    box = start(Wanted()).open()
    bits = {name: int(value, 16) for name, value in _status(box.text("cat /proc/self/status"), "CapEff", "CapBnd")}
    net_raw, mknod, setuid = 1 << 13, 1 << 27, 1 << 7
    for value in bits.values():
        assert value & (net_raw | mknod) == 0
        assert value & setuid
    assert box.code("mknod /tmp/null c 1 3") != 0
    assert box.text("grep NoNewPrivs /proc/self/status").split()[1] == "0"


def test_the_daemon_cannot_be_touched_from_inside(start: Start) -> None:
    """Root of the container can neither end it nor look into it."""
    box = start(Wanted()).open()
    box.run("kill -TERM 1; kill -KILL 1; kill -STOP 1")
    assert box.text("echo alive") == "alive"
    for path in ("/proc/1/mem", "/proc/1/environ", "/proc/1/fd/0", "/proc/1/root/", "/proc/1/exe"):
        assert box.code(f"head -c 1 {path} || ls {path}/.") != 0, path


@pytest.mark.parametrize("read_only", [False, True])
def test_an_image_needs_to_have_nothing(start: Start, read_only: bool) -> None:
    """No shell, no /tmp, no users, a root that cannot be written: commands run all the same."""
    box = start(Wanted(image="static", read_only=read_only)).open()
    box.send(t="exec", id=900, key="static", argv=[b"tool", b"echo", b"here"])
    assert box.receive()["out"]["d"] == b"here\n"
    box.send(t="exec", id=901, key="none", argv=[b"sh"])
    assert box.receive()["code"] == 127


def test_a_timeout_takes_the_whole_tree(start: Start) -> None:
    """No cgroup can be made here, but what has left its session and its parents is found."""
    box = start(Wanted()).open()
    script = "setsid sleep 300 & (setsid sh -c 'sleep 301 & sleep 302' &) ; sleep 303"
    assert box.run(script, timeout_ms=300, kill="tree")["timed_out"]
    assert box.text("ps -o args | grep -c '^slee[p] 30'") == "0"


def test_orphans_are_reaped(start: Start) -> None:
    """Nothing dead is left in the process table, whoever was its parent."""
    container = start(Wanted())
    box = container.open()
    box.run("for i in 1 2 3 4 5; do (true &) ; done; (sleep 0.2 &)")
    container.run_beside("sh", "-c", "(sleep 0.1 &)")
    outside.wait_until(lambda: box.text("ps -o stat | grep -c '^Z'") == "0", "no zombie")
    assert box.call(t="quiesce", how="kill")["t"] == "ok"
    assert box.call(t="processes")["processes"] == []


def test_nobody_is_born_out_of_being_killed(start: Start) -> None:
    """Children that are being made while everybody is killed die as well, and the daemon waits for none of them in vain."""
    box = start(Wanted()).open()
    for number in range(20):
        for key in (f"first-{number}", f"second-{number}"):
            box.send(t="exec", id=900, key=key, mode="job", script=b"while :; do (true & true); done")
            assert box.receive()["t"] == "started"
        box.run("true")
        assert box.call(t="quiesce", how="kill")["t"] == "ok"
        assert box.call(t="processes")["processes"] == []


def test_a_timeout_takes_a_tree_that_grows_while_it_is_killed(start: Start) -> None:
    """No cgroup can be made, and nothing but memory bounds it."""
    box = start(Wanted(memory_bytes=512 << 20)).open()
    assert box.run("f() { f & f & sleep 1000; }; f; wait", timeout_ms=300, kill="tree")["timed_out"]
    outside.wait_until(lambda: box.call(t="processes")["processes"] == [], "nobody of it left", within_s=60)


def test_sigterm_from_outside_ends_it_at_once(start: Start) -> None:
    """What a kubelet sends to stop a pod; the exit code says so, and a command that ignores it does not matter."""
    container = start(Wanted())
    box = container.open()
    box.send(t="exec", id=900, key="stubborn", mode="job", script=b"trap '' TERM; while :; do sleep 1; done")
    assert box.receive()["t"] == "started"
    container.signal("TERM")
    assert container.wait() == 143


def test_usage_is_the_containers_own(start: Start) -> None:
    """Numbers of the container's cgroup, which can only be read."""
    box = start(Wanted(memory_bytes=256 << 20)).open()
    usage = box.call(t="usage")
    assert usage["memory_limit_bytes"] == 256 << 20
    assert 0 < usage["memory_bytes"] < 256 << 20
    assert usage["pids"] >= 1
    assert usage["cpu_us"] is not None


def test_a_command_over_the_memory_limit_is_killed_and_said_so(start: Start) -> None:
    """The container's own count tells it; the daemon and the other command live on."""
    container = start(Wanted(image="debian", memory_bytes=128 << 20, oom_score_adj=1000))
    box = container.open()
    box.send(t="exec", id=900, key="quiet", mode="job", script=b"sleep 1000")
    assert box.receive()["t"] == "started"
    end = box.run("exec python3 -c 'x = bytearray(1 << 28)'")
    assert (end["oom"], end["signal"]) == (True, 9), end
    end = box.run("python3 -c 'x = bytearray(1 << 28)'; exit $?")
    assert (end["oom"], end["code"]) == (True, 137), end
    assert box.run("kill -9 $$")["oom"] is False
    assert box.call(t="usage")["oom_kills"] == 2
    assert [process["key"] for process in box.call(t="processes")["processes"] if process["name"] == b"sleep"] == ["quiet"]


def test_commands_are_killed_before_the_daemon(start: Start) -> None:
    """Their score is above its own, as far as there is an above."""
    container = start(Wanted(oom_score_adj=300))
    box = container.open()
    assert box.text("cat /proc/self/oom_score_adj") == "400"
    assert Path(f"/proc/{container.pid()}/oom_score_adj").read_text().strip() == "300"


def test_what_cannot_be_done_in_a_container_is_said(start: Start) -> None:
    """Freezing, resetting and telling changes are refused by name where the container gives no means."""
    box = start(Wanted(env={"SANDLOT_RESET": "none"})).open()
    assert box.call(t="quiesce", how="freeze")["code"] == "unsupported"
    assert box.call(t="changes", path=b"/tmp")["code"] == "unsupported"
    assert box.call(t="reset")["code"] == "unsupported"
    assert not {feature for feature in box.greeting["features"] if feature.startswith("reset-")}


def test_the_daemon_installs_itself_for_another_container(tmp_path: Path) -> None:
    """`install` leaves one whole executable file."""
    daemon = str(find_daemon())
    subprocess.run([daemon, "install", str(tmp_path)], check=True)
    assert [path.name for path in tmp_path.iterdir()] == ["sandlotd"]
    assert (tmp_path / "sandlotd").stat().st_mode & 0o7777 == 0o755
    assert subprocess.run([str(tmp_path / "sandlotd"), "version"], check=True, capture_output=True).stdout.startswith(
        b"sandlotd "
    )
    assert subprocess.run([daemon, "install", str(tmp_path / "missing")], check=False, capture_output=True).returncode == 1


def _status(text: str, *names: str) -> list[tuple[str, str]]:
    lines = (line.split(":", 1) for line in text.splitlines() if ":" in line)
    return [(name, value.strip()) for name, value in lines if name in names]
