"""However a client ends, nothing of its sandboxes is left within two seconds, counted from outside."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandlot.testing.observer import Footprint, footprint
from tests.patience import Patience

COUNT = 50
GRACE_SECONDS = 2.0


@contextmanager
def busy_client(runtime_dir: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Footprint, dict[str, int]]]:
    """A client with `COUNT` busy sandboxes, its footprint, and what it said of itself."""
    environment = os.environ | {"SANDLOT_RUNTIME_DIR": str(runtime_dir)}
    command = [sys.executable, "-m", "tests.faults.client", str(COUNT), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as client:
        assert client.stdout is not None
        try:
            said = json.loads(client.stdout.readline())
            mark = footprint(client.pid)
            assert len(mark.processes) > 2 * COUNT, "the observer must see every sandbox's processes"
            assert len(mark.namespaces) >= COUNT
            assert mark.directories
            yield client, mark, said
        finally:
            if client.poll() is None:
                client.kill()


def left_in_the_end(mark: Footprint) -> dict[str, list[str]]:
    """What is left when the promised time is over, counted as `Patience` does; returns as soon as nothing is."""
    patience = Patience(GRACE_SECONDS)
    while (rest := mark.left()) and not patience.over():
        time.sleep(0.02)
    return rest


def _host_pid(client: int) -> int:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"host" in words and b"--client-pid" in words and str(client).encode() in words:
                return int(entry.name)
    raise AssertionError("no host found")


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGINT, signal.SIGINT], [signal.SIGTERM], [signal.SIGKILL]])
def test_nothing_is_left_after_the_client_is_signalled(tmp_path: Path, signals: list[signal.Signals]) -> None:
    """Ctrl-C once and twice, TERM and KILL all end in the same: nothing."""
    with busy_client(tmp_path) as (client, mark, _):
        for number in signals:
            client.send_signal(number)
        client.wait(timeout=30)
        assert left_in_the_end(mark) == {}


def test_nothing_is_left_though_a_forked_worker_holds_the_sockets(tmp_path: Path) -> None:
    """The client is killed while a child with all of its descriptors lives on."""
    with busy_client(tmp_path, "--fork") as (client, mark, said):
        try:
            client.kill()
            client.wait(timeout=30)
            rest = left_in_the_end(mark)
            of_ours = {kind: [name for name in names if name != str(said["child"])] for kind, names in rest.items()}
            assert {kind: names for kind, names in of_ours.items() if names} == {}
        finally:
            os.kill(said["child"], signal.SIGKILL)


def test_nothing_is_left_after_client_and_host_are_killed_together(tmp_path: Path) -> None:
    """Both are gone at once, and still everything goes."""
    with busy_client(tmp_path) as (client, mark, _):
        host = _host_pid(client.pid)
        os.kill(host, signal.SIGKILL)
        client.kill()
        client.wait(timeout=30)
        assert left_in_the_end(mark) == {}


def test_nothing_is_left_after_the_host_alone_is_killed(tmp_path: Path) -> None:
    """The client lives and learns of it; the sandboxes are gone."""
    with busy_client(tmp_path) as (client, mark, _):
        os.kill(_host_pid(client.pid), signal.SIGKILL)
        assert left_in_the_end(mark) == {}
