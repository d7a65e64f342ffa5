"""Everything that an episode can change is as after creation, two hundred times in a row."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.daemon.conftest import MakeBox
from tests.daemon.wire import Box

ALL = {"processes": True, "files": True, "mounts": True, "ipc": True, "hostname": True, "network": True}


def reset(box: Box) -> int:
    """Reset, all verified; how long it took in microseconds."""
    answer = box.call(t="reset")
    assert answer["t"] == "ok", answer
    assert answer["verified"] == ALL
    took: int = answer["took_us"]
    return took


@pytest.mark.parametrize(
    ("change", "look"),
    [
        ("echo x > /usr/bin/new; rm /usr/bin/env", "ls /usr/bin/new /usr/bin/env 2>&1"),
        ("echo x >> /etc/passwd; rm -rf /etc/ssl; chmod 777 /etc", "md5sum /etc/passwd; ls -d /etc/ssl; stat -c %a /etc"),
        ("echo x > /tmp/x; echo x > /dev/shm/x; echo x > /run/x; mkdir -p /new/dir", "ls /tmp /dev/shm /run /new 2>&1"),
        ("echo x > /dev/x; ln -s /x /dev/y", "ls /dev"),
        ("echo other > /etc/hostname; echo 1.2.3.4 x >> /etc/hosts", "cat /etc/hostname /etc/hosts"),
        ("ipcmk -M 4096; ipcmk -Q; ipcmk -S 1", "tail -n +2 /proc/sysvipc/shm /proc/sysvipc/msg /proc/sysvipc/sem"),
        ("useradd -m ann", "id ann 2>&1; ls /home"),
        ("chown 5:5 /; chmod 700 /", "stat -c '%a %u' /"),
        ("rm -rf /var /root /home 2>/dev/null; true", "ls -d /var /root /home"),
    ],
)
def test_a_change_is_undone(box: Box, change: str, look: str) -> None:
    """What can be seen afterwards is what could be seen before."""
    before = box.text(look)
    box.run(change)
    reset(box)
    assert box.text(look) == before


def test_processes_of_every_kind_end(box: Box) -> None:
    """Background jobs, daemons in sessions of their own, stopped and stubborn ones."""
    box.run("sleep 100 & setsid sleep 101 & (setsid sh -c 'sleep 102' &)")
    box.run("sh -c 'kill -STOP $$' & sh -c 'trap \"\" TERM INT HUP; sleep 103' &")
    answer = box.call(t="reset")
    assert answer["verified"] == ALL
    assert answer["killed"] >= 5
    assert box.text("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'slee[p] 10'") == "0"


def test_open_files_and_sockets_do_not_survive(box: Box) -> None:
    """Listeners are gone and their ports are free, also when connections were left behind."""
    server = (
        "import socket, time, os; s = socket.socket(); s.setsockopt(1, 2, 0); s.bind(('127.0.0.1', 4567)); s.listen();"
        "c = socket.create_connection(('127.0.0.1', 4567)); a, _ = s.accept(); a.close(); c.close(); print('up', flush=True);"
    )
    for _ in range(3):
        assert box.text(f'python3 -c "{server}"') == "up"
        reset(box)


def test_two_hundred_resets_stay_flat(make: MakeBox) -> None:
    """Two thousand changed files each time: nothing piles up in the sandbox or on the machine."""
    box = make()
    fill = "mkdir -p /work && cd /work && python3 -c \"for i in range(2000): open(f'f{i}', 'w').write('x' * 2000)\""
    samples = []
    for number in range(200):
        assert box.code(fill) == 0
        reset(box)
        if number in {20, 199}:
            samples.append((_mounts(), _resident_kib(box)))
    (mounts_early, memory_early), (mounts_late, memory_late) = samples
    assert mounts_late <= mounts_early
    assert memory_late < memory_early + 1024
    assert box.code("test ! -e /work") == 0


def _mounts() -> int:
    return len(Path("/proc/self/mountinfo").read_text().splitlines())


def _resident_kib(box: Box) -> int:
    return int(box.text("grep VmRSS /proc/1/status").split()[1])


def test_quiesce_lists_and_kills(box: Box) -> None:
    """What was found is listed, nothing of it is left, and commands run again."""
    box.run("sleep 200 & setsid sleep 201 & sleep 0.5")
    found = box.call(t="quiesce", how="kill")["processes"]
    assert {entry["argv"][-1] for entry in found if entry["name"] == b"sleep"} == {b"200", b"201"}
    assert box.text("cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'slee[p] 20'") == "0"


def test_frozen_processes_stop_and_go_on(box: Box) -> None:
    """A writer stops writing while frozen and goes on when thawed; a frozen one can be killed."""
    box.run("sh -c 'while :; do echo x >> /tmp/log; sleep 0.01; done' & sleep 0.3")
    assert box.call(t="quiesce", how="freeze")["t"] == "ok"
    size = box.call(t="stat", path=b"/tmp/log")["size"]
    assert box.call(t="stat", path=b"/tmp/log")["size"] == size
    assert box.call(t="quiesce", how="thaw")["t"] == "ok"
    assert box.code(f"i=0; while [ $(stat -c %s /tmp/log) -le {size} ]; do sleep 0.05; i=$((i+1)); [ $i -lt 200 ]; done") == 0
    assert box.call(t="quiesce", how="freeze")["t"] == "ok"
    reset(box)
    assert box.text("echo alive") == "alive"
