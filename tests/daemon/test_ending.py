"""How sandboxes and hosts end, and that nothing is left, counted from outside."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemon import outside
from tests.daemon.wire import Host


@pytest.fixture
def own(runtime: Path) -> Iterator[Host]:
    """A host that this test may end as it likes."""
    host = Host(runtime)
    yield host
    for link in host.links:
        link.close()
    host.control.close()
    if host.process.poll() is None:
        host.process.kill()
        host.process.wait()
    outside.wait_until(lambda: outside.cgroups(host.ready["host"]) == [], "no cgroup is left")


def home(host: Host) -> Path:
    """The host's own directory."""
    return Path(os.fsdecode(host.ready["socket"])).parent


def busy(host: Host, count: int = 5, **fields: object) -> list[int]:
    """Sandboxes with processes in them; the PIDs of their inits."""
    for number in range(count):
        box = host.create(f"busy-{number}", **fields)
        box.run("sleep 3600 & setsid sleep 3601 & echo x > /x")
    return [entry["pid"] for entry in host.ask(t="list")["sandboxes"]]


def gone(host: Host, pids: list[int]) -> None:
    """Nothing of the host and of these sandboxes is left, within the time that is promised."""
    outside.wait_until(lambda: not any(outside.alive(pid) for pid in pids), "no init is left", 5)
    outside.wait_until(lambda: outside.cgroups(host.ready["host"]) == [], "no cgroup is left", 5)
    outside.wait_until(lambda: not home(host).exists(), "no directory is left", 5)
    outside.wait_until(lambda: outside.processes(str(home(host))) == [], "no warden is left", 5)


def test_destroy_returns_after_everything_is_gone(own: Host) -> None:
    """At the moment of the answer there is no process and no cgroup of it."""
    (pid,) = busy(own, 1)
    before = outside.cgroups(own.ready["host"])
    assert own.destroy("busy-0")["existed"] is True
    assert not outside.alive(pid)
    left = outside.cgroups(own.ready["host"])
    assert len(left) < len(before)
    assert all(path.endswith(own.ready["host"]) for path in left)
    assert own.destroy("busy-0")["existed"] is False


def test_destroy_with_grace_lets_processes_end(own: Host) -> None:
    """Everybody is asked first; who is done early is not waited for, who does not listen is killed."""
    box = own.create("polite", network="host")
    box.run("sh -c 'trap \"echo bye > /dev/udp; exit\" TERM; sleep 1000' & sh -c 'trap \"\" TERM; sleep 1000' & sleep 0.5")
    start = time.monotonic()
    own.destroy("polite", grace_ms=500)
    assert 0.5 <= time.monotonic() - start < 5
    own.create("quick").run("sleep 1000 &")
    start = time.monotonic()
    own.destroy("quick", grace_ms=30_000)
    assert time.monotonic() - start < 10


def test_processes_see_the_request_to_end(own: Host, tmp_path: Path) -> None:
    """A trap for SIGTERM runs to its end within the grace."""
    os.chmod(tmp_path, 0o777)
    box = own.create("trap", upper={"kind": "disk", "size_bytes": None})
    ready = box.run(
        "sh -c 'trap \"sleep 0.2; echo done > /done; sleep 1000\" TERM; echo > /ready; while :; do sleep 0.05; done' &"
        " while [ ! -e /ready ]; do sleep 0.01; done"
    )
    assert ready["code"] == 0
    link = own.dial()
    link.send(t="destroy", id=9, name="trap", grace_ms=20_000)
    outside.wait_until(lambda: list(home(own).rglob("done")) != [], "the trap has run", 10)
    box.close()
    os.kill(own.ask(t="list")["sandboxes"][0]["pid"], signal.SIGKILL)
    assert link.receive()["existed"] is True


def test_a_sandbox_that_dies_by_itself_is_told(own: Host) -> None:
    """Watchers learn the name and why, and those who come later as well."""
    watcher = own.dial()
    watcher.send(t="watch", id=7)
    (pid,) = busy(own, 1)
    os.kill(pid, signal.SIGKILL)
    news = watcher.receive()
    assert (news["t"], news["id"], news["name"], news["why"]) == ("gone", 7, "busy-0", "killed")
    answer = own.ask(t="enter", name="busy-0")
    assert (answer["code"], answer["why"]) == ("gone", "killed")


def test_a_cancelled_watch_is_silent(own: Host) -> None:
    """After the cancel only its answer comes."""
    watcher = own.dial()
    watcher.send(t="watch", id=3)
    watcher.send(t="cancel", id=3)
    assert watcher.receive()["code"] == "cancelled"
    (pid,) = busy(own, 1)
    os.kill(pid, signal.SIGKILL)
    outside.wait_until(lambda: own.names() == [], "it is removed")
    watcher.send(t="ping", id=4)
    assert watcher.receive() == {"t": "pong", "id": 4}


def test_an_idle_sandbox_ends(own: Host) -> None:
    """Nobody has used it for its idle time-out; a running command is use."""
    watcher = own.dial()
    watcher.send(t="watch", id=1)
    box = own.create("idle", idle_timeout_ms=300)
    assert box.run("sleep 1; echo done")["out"]["d"] == b"done\n"
    news = watcher.receive()
    assert (news["name"], news["why"]) == ("idle", "idle")


def test_a_life_time_ends_a_busy_sandbox(own: Host) -> None:
    """However busy it is."""
    watcher = own.dial()
    watcher.send(t="watch", id=1)
    box = own.create("short", max_lifetime_ms=500)
    box.send(t="exec", id=50, key="long", script=b"sleep 100")
    news = watcher.receive()
    assert (news["name"], news["why"]) == ("short", "lifetime")


def test_a_lease_is_renewed_or_ends(own: Host) -> None:
    """It lives as long as somebody renews, and not much longer."""
    watcher = own.dial()
    watcher.send(t="watch", id=1)
    own.create("leased", owner="leased", lease_ms=600)
    for _ in range(4):
        time.sleep(0.3)
        assert own.ask(t="renew", name="leased", lease_ms=600)["t"] == "ok"
    assert 0 < own.ask(t="list")["sandboxes"][0]["lease_left_ms"] <= 600
    news = watcher.receive()
    assert (news["name"], news["why"]) == ("leased", "lease_expired")
    assert own.ask(t="renew", name="leased", lease_ms=600)["code"] == "gone"
    own.create("attached")
    assert own.ask(t="renew", name="attached", lease_ms=600)["code"] == "bad_request"


def test_closing_the_control_ends_everything(own: Host) -> None:
    """The client's orderly end: all is gone and the host's exit code is 0."""
    pids = busy(own)
    own.control.close()
    assert own.process.wait(10) == 0
    gone(own, pids)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_host_leaves_nothing(own: Host, number: signal.Signals) -> None:
    """Asked to end it ends in order; killed, its inits die with it and its warden removes the rest."""
    pids = busy(own)
    own.process.send_signal(number)
    own.process.wait(10)
    gone(own, pids)


def test_signals_of_a_terminal_are_not_for_the_host(own: Host) -> None:
    """SIGINT and SIGHUP do not end it: the client decides."""
    busy(own, 1)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        own.process.send_signal(number)
    assert own.names() == ["busy-0"]
    assert os.getsid(own.process.pid) == own.process.pid


def test_host_and_warden_killed_together_leave_no_process(own: Host, runtime: Path) -> None:
    """The inits die all the same; the next host sweeps what cannot remove itself."""
    pids = busy(own, 3, upper={"kind": "disk", "size_bytes": None})
    own.process.send_signal(signal.SIGSTOP)  # or it would start another warden
    for pid in [*outside.processes(f"warden\0{home(own)}"), own.process.pid]:
        os.kill(pid, signal.SIGKILL)
    own.process.wait(10)
    outside.wait_until(lambda: not any(outside.alive(pid) for pid in pids), "no init is left", 5)
    assert home(own).exists()
    sweeper = Host(runtime)
    assert own.ready["host"] in sweeper.ready["swept"]
    gone(own, pids)
    assert sweeper.close() == 0


def test_a_sweep_never_touches_the_living(own: Host, runtime: Path) -> None:
    """Two hosts side by side: the second's start and end leave the first alone."""
    busy(own, 2)
    other = Host(runtime)
    assert own.ready["host"] not in other.ready["swept"]
    other.create("busy-0").text("echo the same name on another host")
    assert other.close() == 0
    assert own.names() == ["busy-0", "busy-1"]
    assert own.enter("busy-0").text("cat /x") == "x"


def test_a_dead_warden_is_replaced(own: Host) -> None:
    """And the new one does the same work."""
    time.sleep(1.1)  # one that dies at once is not started again
    (warden,) = outside.processes(f"warden\0{home(own)}")
    os.kill(warden, signal.SIGKILL)
    outside.wait_until(lambda: outside.processes(f"warden\0{home(own)}") not in ([], [warden]), "a new warden is there")
    pids = busy(own, 2)
    own.process.kill()
    own.process.wait()
    gone(own, pids)


def test_leased_sandboxes_outlive_their_client(runtime: Path) -> None:
    """Attached ones end with it; leased ones until their lease, and the host with the last of them."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        host = Host(runtime)
        host.create("attached").run("sleep 100 &")
        host.create("leased", owner="leased", lease_ms=3_000).run("echo kept > /kept")
        os.write(write, host.ready["socket"] + b"\0" + host.ready["host"].encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    socket_path, _, name = os.read(read, 4096).partition(b"\0")
    os.close(read)
    host = Host.__new__(Host)
    host.ready, host.links = {"socket": socket_path, "host": name.decode()}, []
    outside.wait_until(lambda: host.names() == ["leased"], "the attached one is gone", 5)
    box = host.enter("leased")
    assert box.text("cat /kept") == "kept"
    _, refused = host.try_create("new")
    assert (refused["code"], refused["why"]) == ("gone", "host_closing")
    box.close()
    outside.wait_until(lambda: not home(host).exists(), "the host ends with the last lease", 10)
    for link in host.links:
        link.close()
    gone(host, [])


def test_the_death_of_a_client_is_seen_behind_a_fork(runtime: Path) -> None:
    """A worker that the client has forked holds its sockets open: the client's own end counts."""
    read, write = os.pipe()
    client = os.fork()
    if client == 0:
        host = Host(runtime)
        host.create("box").run("sleep 100 &")
        worker = os.fork()
        if worker == 0:
            time.sleep(60)
            os._exit(0)
        os.write(write, f"{worker} {host.ready['host']} {os.fsdecode(host.ready['socket'])}".encode())
        time.sleep(60)
        os._exit(0)
    number, name, path = os.read(read, 4096).decode().split()
    worker = int(number)
    os.kill(client, signal.SIGKILL)
    os.waitpid(client, 0)
    try:
        outside.wait_until(lambda: not Path(path).parent.exists(), "everything is gone", 5)
        assert outside.cgroups(name) == []
        assert outside.alive(worker)
    finally:
        os.kill(worker, signal.SIGKILL)
        os.close(read)
        os.close(write)


def test_a_creator_that_hangs_up_harms_nobody(own: Host) -> None:
    """Its sandbox is made all the same, and can be destroyed by name."""
    for number in range(10):
        link = own.dial()
        link.send(t="create", id=1, name=f"left-{number}", image={"kind": "host"}, upper={"kind": "tmpfs"})
        link.close()
    for number in range(10):
        assert own.destroy(f"left-{number}")["t"] == "ok"
    outside.wait_until(lambda: own.names() == [], "all are gone")


def test_many_at_once_come_and_go(own: Host) -> None:
    """A hundred creations in flight together, all usable, all gone."""
    links = [own.dial() for _ in range(100)]
    for number, link in enumerate(links):
        link.send(t="create", id=1, name=f"many-{number}", image={"kind": "host"}, upper={"kind": "tmpfs"})
    answers = [link.receive() for link in links]
    assert {answer["t"] for answer in answers} == {"ok"}
    pids = [entry["pid"] for entry in own.ask(t="list")["sandboxes"]]
    assert len(pids) == 100
    for link in links:
        link.hello()
        link.send(t="exec", id=2, key="one", script=b"exit 7")
    assert {link.receive()["code"] for link in links} == {7}
    control = own.dial()
    for number in range(100):
        control.send(t="destroy", id=number + 1, name=f"many-{number}")
    assert {control.receive()["id"] for _ in range(100)} == set(range(1, 101))
    assert not any(outside.alive(pid) for pid in pids)
    assert len(outside.cgroups(own.ready["host"])) == len(
        [p for p in outside.cgroups(own.ready["host"]) if p.endswith(own.ready["host"])]
    )
