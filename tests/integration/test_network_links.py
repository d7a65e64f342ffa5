"""Sealed links to real daemons over TCP: each is the first process of namespaces of its own, as in a pod, without a cluster."""

from __future__ import annotations

import asyncio
import os
import random
import secrets
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from sandlot.backends.kubernetes.links.dial_in import dial_in, dial_in_when_up
from sandlot.backends.kubernetes.links.listener import Listener
from sandlot.backends.kubernetes.links.registrar import Enrolment, Registrar
from sandlot.daemon_binary import find_daemon
from sandlot.sandbox import Sandbox

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("unshare") is None, reason="a first process of its own namespaces needs root and unshare"
)
PATIENCE_S = 60.0
"""Far beyond what any of this takes on a busy machine."""


@contextmanager
def pod(enrolment: Enrolment, environment: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon in the role it has in a pod; ends with the block, and what it started with it."""
    words = [
        "unshare",
        "--pid",
        "--fork",
        "--mount",
        "--ipc",
        "--uts",
        "--kill-child",
        "--mount-proc",
        str(find_daemon()),
        "pod",
    ]
    told = {"PATH": os.environ["PATH"], "SANDLOT_NAME": "box", "SANDLOT_GRACE_MS": "60000", **enrolment.environment()}
    process = subprocess.Popen(words, env={**told, **environment}, cwd="/", stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def registrar() -> Registrar:
    return Registrar()


@pytest.fixture
def conflicts() -> list[str]:
    return []


@pytest.fixture
async def listener(registrar: Registrar, conflicts: list[str]) -> AsyncIterator[Listener]:
    made = await Listener.open(registrar, on_conflict=lambda name, _why: conflicts.append(name))
    yield made
    await made.aclose()


def dialling(listener: Listener) -> dict[str, str]:
    return {"SANDLOT_DIAL": f"127.0.0.1:{listener.port}"}


async def arrived(listener: Listener) -> Sandbox:
    async with asyncio.timeout(PATIENCE_S):
        connection = await listener.arrival("box")
    return Sandbox(connection, reopen=lambda: listener.arrival("box"))


async def test_a_daemon_dials_and_runs_commands(registrar: Registrar, listener: Listener, tmp_path: Path) -> None:
    """Much data passes in both directions as it is; nothing of how the link came about is in a command's environment."""
    with pod(registrar.register("box"), dialling(listener)):
        box = await arrived(listener)
        data = secrets.token_bytes(3_000_001)
        await box.write(str(tmp_path / "file"), data)
        assert await box.read(str(tmp_path / "file")) == data
        assert "SANDLOT" not in (await box.exec("env")).stdout
        results = await asyncio.gather(*(box.exec(f"echo {number}") for number in range(20)))
        assert [int(result.stdout) for result in results] == list(range(20))
        await box.aclose()


async def test_a_daemon_is_dialled_and_dialled_again(registrar: Registrar, tmp_path: Path) -> None:
    """A link that is cut while a command runs: it goes on, and has run once."""
    port = _free_port()
    with pod(registrar.register("box"), {"SANDLOT_LISTEN": str(port)}):
        connection = await dial_in_when_up(("127.0.0.1", port), "box", registrar, within_s=PATIENCE_S)
        box = Sandbox(connection, reopen=lambda: dial_in(("127.0.0.1", port), "box", registrar))
        await _survives_a_cut(box, tmp_path)
        await box.aclose()


async def test_a_daemon_whose_link_was_cut_dials_again(registrar: Registrar, listener: Listener, tmp_path: Path) -> None:
    """The command that ran goes on, and has run once."""
    with pod(registrar.register("box"), dialling(listener)):
        box = await arrived(listener)
        await _survives_a_cut(box, tmp_path)
        await box.aclose()


async def test_a_second_daemon_with_the_same_secret_is_refused(
    registrar: Registrar, listener: Listener, conflicts: list[str]
) -> None:
    """And reported, however often it tries; the first is not disturbed."""
    enrolment = registrar.register("box")
    with pod(enrolment, dialling(listener)):
        box = await arrived(listener)
        with pod(enrolment, dialling(listener)):
            async with asyncio.timeout(PATIENCE_S):
                while len(conflicts) < 2:  # noqa: ASYNC110 - the thief tries again by itself
                    await asyncio.sleep(0.01)
        assert (await box.exec("echo mine")).stdout == "mine\n"
        assert set(conflicts) == {"box"}
        await box.aclose()


async def _survives_a_cut(box: Sandbox, folder: Path) -> None:
    gate, runs = folder / "gate", folder / "runs"
    os.mkfifo(gate)
    running = asyncio.create_task(box.exec(f"echo x >> {runs}; read word < {gate}; echo $word"))
    async with asyncio.timeout(PATIENCE_S):
        while not runs.exists():  # noqa: ASYNC110 - the file system tells nobody
            await asyncio.sleep(0.01)
        box.connection.abort()
        while box.connection.links_lost == 0:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
        assert (await box.exec("echo again")).stdout == "again\n"
        await asyncio.to_thread(gate.write_text, "through\n")
        assert (await running).stdout == "through\n"
    assert runs.read_text() == "x\n"


def _free_port() -> int:
    """One that nobody is given by chance: below those that the kernel gives out."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as sock, suppress(OSError):
            sock.bind(("0.0.0.0", port))
            return port
