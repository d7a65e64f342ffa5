"""The host process and its client: death, closing, forks, several in one process."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

import sandlot
from sandlot.backends.base import Gone, Grant
from sandlot.backends.local import LocalBackend
from sandlot.backends.local.runtime import hosts, runtime_dir
from sandlot.errors import Closed, SandboxGone, Unsupported
from sandlot.provider import Provider
from sandlot.spec import Spec

SPEC = Spec(image="host", memory="64MiB", limits="best-effort")


def backend_of(provider: Provider) -> LocalBackend:
    assert isinstance(provider.backend, LocalBackend)
    return provider.backend


async def test_the_death_of_the_host_is_typed_for_every_sandbox(provider: Provider) -> None:
    """Running calls, new calls and new creates raise `SandboxGone` with the reason; nothing hangs."""
    boxes = [await provider.create(SPEC) for _ in range(3)]
    running = [asyncio.create_task(box.exec("sleep 600")) for box in boxes]
    await asyncio.gather(*(box.exec("true") for box in boxes))

    os.kill(backend_of(provider).host_pid, signal.SIGKILL)

    for task in running:
        with pytest.raises(SandboxGone) as caught:
            await task
        assert caught.value.retriable
    for box in boxes:
        with pytest.raises(SandboxGone):
            await box.exec("true")
    with pytest.raises(SandboxGone, match="signal 9"):
        await provider.create(SPEC)


async def test_watchers_hear_of_every_sandbox_when_the_host_dies(cache: Path) -> None:
    """Each by name, with why `node_lost`."""
    backend = LocalBackend(cache=cache)
    await backend.start()
    connections = [(await backend.create(name, SPEC, Grant())).connection for name in ("watch-a", "watch-b")]
    seen: list[Gone] = []

    async def follow() -> None:
        async for gone in backend.watch():
            seen.append(gone)
            if len(seen) == 2:
                return

    following = asyncio.create_task(follow())
    await asyncio.sleep(0)
    os.kill(backend.host_pid, signal.SIGKILL)
    await following
    assert sorted((gone.name, gone.why) for gone in seen) == [("watch-a", "node_lost"), ("watch-b", "node_lost")]
    for connection in connections:
        await connection.aclose()
    await backend.aclose()


async def test_nothing_is_left_after_closing(cache: Path) -> None:
    """Neither the host's process nor its directory."""
    async with sandlot.local(cache=cache) as provider:
        box = await provider.create(SPEC)
        await box.start("sleep 600")
        pid, host = backend_of(provider).host_pid, backend_of(provider).host_id
        assert host in {found.id for found in hosts(runtime_dir())}
    assert host not in {found.id for found in hosts(runtime_dir())}
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_two_providers_of_one_process_do_not_touch_each_other(cache: Path) -> None:
    """Each has a host of its own; closing one leaves the other's sandboxes as they are."""
    async with sandlot.local(cache=cache) as one, sandlot.local(cache=cache) as other:
        mine, theirs = await one.create(SPEC), await other.create(SPEC)
        await mine.write("/tmp/f", b"mine")
        await other.aclose()
        assert await mine.read("/tmp/f") == b"mine"
        assert {info.name for info in await one.list()} == {mine.name}
        with pytest.raises((Closed, SandboxGone)):
            await theirs.exec("true")


def _use_in_a_fork(provider: Provider, answers: multiprocessing.Queue[str]) -> None:
    try:
        asyncio.run(backend_of(provider).list())
        answers.put("it answered")
    except Closed as error:
        answers.put(str(error))


async def test_a_forked_worker_is_told_to_open_its_own(provider: Provider) -> None:
    """The parent's provider refuses in a fork, harms nothing of the parent's, and a provider of its own works there."""
    box = await provider.create(SPEC)
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue[str] = context.Queue()
    worker = context.Process(target=_use_in_a_fork, args=(provider, answers))
    worker.start()
    answer = await asyncio.to_thread(answers.get)
    await asyncio.to_thread(worker.join)
    assert "is a fork" in answer
    assert "a provider of its own" in answer
    assert (await box.exec("echo still here")).stdout == "still here\n"


async def test_children_of_the_client_inherit_no_descriptor(provider: Provider) -> None:
    """A program that the client starts cannot hold a sandbox's link open, nor use it."""
    await provider.create(SPEC)
    done = subprocess.run(["ls", "/proc/self/fd"], close_fds=False, capture_output=True, text=True, check=True)
    inherited = set(done.stdout.split())
    for number in inherited - {"0", "1", "2", "3"}:
        with suppress(FileNotFoundError):
            assert "socket" not in os.readlink(f"/proc/self/fd/{number}")


async def test_a_missing_or_foreign_binary_is_unsupported(tmp_path: Path, cache: Path) -> None:
    """With what to do, at once, and without a process left."""
    with pytest.raises(Unsupported, match="does not exist"):
        await LocalBackend(daemon=Path("/no/such/daemon"), cache=cache).start()
    for script, text in (("#!/bin/sh\necho broken >&2; exit 7\n", "exit code 7: broken"), ("no program", "cannot be started")):
        fake = tmp_path / "fake"
        fake.write_text(script)
        fake.chmod(0o755)
        with pytest.raises(Unsupported, match=text):
            await LocalBackend(daemon=fake, cache=cache).start()


async def test_use_after_closing_is_closed(cache: Path) -> None:
    """And closing twice is closing once."""
    backend = LocalBackend(cache=cache)
    with pytest.raises(Closed):
        await backend.list()
    await backend.start()
    await backend.aclose()
    await backend.aclose()
    with pytest.raises(Closed):
        await backend.create("x", SPEC, Grant())


async def test_a_leased_sandbox_is_found_by_another_provider(cache: Path) -> None:
    """It outlives its provider, answers to its name, is renewed and deleted by whoever knows it."""
    async with sandlot.local(cache=cache) as first:
        box = await first.create(SPEC, owner="leased", lease_s=60)
        await box.write("/tmp/f", b"kept")
        name = box.name
    async with sandlot.local(cache=cache) as second:
        again = await second.attach(name)
        assert await again.read("/tmp/f") == b"kept"
        await second.renew(name, 90)
        await second.delete(name)
        with pytest.raises(SandboxGone):
            await second.attach(name)


async def test_a_lease_that_runs_out_ends_the_sandbox(cache: Path) -> None:
    """Nobody has to do anything, and nothing is left."""
    async with sandlot.local(cache=cache) as provider:
        box = await provider.create(SPEC, owner="leased", lease_s=0.3)
        departures = provider.departures()
        gone = await anext(departures)
        assert (gone.name, gone.why) == (box.name, "lease_expired")
        assert box.name not in {info.name for info in await provider.list()}


async def test_a_host_that_outlives_its_provider_leaves_no_zombie(cache: Path) -> None:
    """It lives on for a leased sandbox; when the lease ends, nothing of it is left although its client still runs."""
    async with sandlot.local(cache=cache) as provider:
        await provider.create(SPEC, owner="leased", lease_s=1)
        pid = backend_of(provider).host_pid
    os.kill(pid, 0)
    deadline = time.monotonic() + 30
    while os.path.exists(f"/proc/{pid}"):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.05)
