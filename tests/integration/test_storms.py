"""Provider and pool on real sandboxes: bursts, storms of cancellation, reuse. What is left is counted from outside."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest

import sandlot
from sandlot import Pool, PoolLimits, Provider, SandboxGone, Spec
from sandlot.strategies import Plan, View, fixed
from sandlot.testing.observer import daemons, footprint

SPEC = Spec(image="host", limits="best-effort")


def keep_all(view: View) -> Plan:
    return Plan()


@pytest.fixture
async def provider() -> AsyncIterator[Provider]:
    """A provider that must leave nothing of what an observer saw before its end."""
    others = footprint(os.getpid())
    async with sandlot.local() as provider:
        yield provider
        before = footprint(os.getpid()).without(others)
        assert before.processes
        closing = await provider.aclose()
    assert (closing.left, closing.gone) == ((), closing.created)
    assert before.wait_until_nothing_is_left(60) == {}


async def test_a_burst_is_served_whole(provider: Provider) -> None:
    """Every one of many callers at once gets a sandbox of its own that answers with its own number."""

    async def one(number: int) -> str:
        async with await provider.create(SPEC) as box:
            result = await box.exec(f"echo {number} > /tmp/mine; cat /tmp/mine; exit {number}")
            assert (result.stdout, result.exit_code) == (f"{number}\n", number)
            return box.name

    names = await asyncio.gather(*(one(number) for number in range(100)))
    assert len(set(names)) == 100


async def test_callers_that_give_up_leave_nothing(provider: Provider) -> None:
    """A hundred time-outs from a fraction of a create to longer than one."""
    chance = random.Random(7)
    for _ in range(100):
        try:
            box = await asyncio.wait_for(provider.create(SPEC), chance.uniform(0.0005, 0.04))
        except TimeoutError:
            continue
        await box.aclose()
    await _until(lambda: provider.statistics().states == {})
    assert await provider.list() == []


async def test_a_storm_of_cancellations_leaves_nothing(provider: Provider) -> None:
    """Callers cancelled once or twice at any moment of create, exec and close; the others are served."""
    chance = random.Random(11)

    async def one(number: int) -> int:
        async with await provider.create(SPEC) as box:
            result = await box.exec(f"sleep 0.02; exit {number}")
            return result.exit_code

    loop = asyncio.get_running_loop()
    tasks = [asyncio.create_task(one(number)) for number in range(120)]
    for task in tasks[::2]:
        for _ in range(chance.randint(1, 2)):
            loop.call_later(chance.uniform(0, 1.5), task.cancel)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert results[1::2] == list(range(1, 120, 2))
    assert all(isinstance(result, asyncio.CancelledError) or result == 2 * n for n, result in enumerate(results[::2]))
    assert provider.statistics().states == {}


async def test_a_pool_gives_a_clean_sandbox_every_time(provider: Provider) -> None:
    """Whatever an episode leaves (files anywhere, processes, shared memory) the next one does not see, in the same sandbox."""
    mess = "echo x > /tmp/left; echo x > /etc/left; mkdir -p /opt/left; echo x > /dev/shm/left; (setsid sleep 1000 &) ; :"
    look = "ls /tmp /opt /dev/shm; ls /etc/left 2>/dev/null; ps -e 2>/dev/null | grep -c '[s]leep'"
    async with Pool(provider, strategy=keep_all, limits=PoolLimits(sandboxes=1)) as pool:
        async with pool.lease(SPEC) as first:
            clean = (await first.exec(look)).stdout
        names = {first.name}
        for _ in range(10):
            async with pool.lease(SPEC) as box:
                names.add(box.name)
                assert (await box.exec(look)).stdout == clean
                await box.exec(mess, check=True)
                assert (await box.exec(look)).stdout != clean
        statistics = pool.statistics()
    assert (len(names), statistics.created, statistics.reused, dict(statistics.discarded)) == (1, 1, 10, {})


async def test_a_parked_sandbox_that_was_killed_is_never_handed_out(provider: Provider) -> None:
    """Its daemon is killed from outside while it is parked; the next lease gets another one that works."""
    async with Pool(provider, strategy=fixed({SPEC: 1}), limits=PoolLimits(sandboxes=3)) as pool:
        for _ in range(3):
            async with pool.lease(SPEC) as box:
                doomed = box.name
            await _until(lambda: pool.statistics().idle == 1)
            assert _kill_inits() >= 1
            async with pool.lease(SPEC) as box:
                assert box.name != doomed
                assert (await box.exec("exit 5")).exit_code == 5


async def test_a_sandbox_whose_daemon_is_killed_says_gone(provider: Provider) -> None:
    """The call under way ends at once with `SandboxGone`, and what is left of it is removed."""
    box = await provider.create(SPEC)
    running = asyncio.create_task(box.exec("sleep 1000"))
    await asyncio.sleep(0.2)
    assert _kill_inits() == 1
    with pytest.raises(SandboxGone):
        await asyncio.wait_for(running, 10)
    await _until(lambda: provider.statistics().states == {})


def _kill_inits() -> int:
    """Kill every process of this client's that is the first of a process namespace of its own; how many."""
    killed = 0
    for pid in daemons(os.getpid()):
        with suppress(FileNotFoundError, ProcessLookupError):
            inside = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("NSpid:"))
            numbers = inside.split()[1:]
            if len(numbers) > 1 and numbers[-1] == "1":
                os.kill(pid, signal.SIGKILL)
                killed += 1
    return killed


async def _until(holds: object, seconds: float = 10.0) -> None:
    assert callable(holds)
    async with asyncio.timeout(seconds):
        while not holds():  # noqa: ASYNC110 - nothing tells of it: an observer can only look again
            await asyncio.sleep(0.01)
