"""The pool: leases are clean, alive and fair, and nothing outlives it. Virtual time, sandboxes that are not real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sandlot.errors import BadRequest, Capacity, Closed, DaemonFault, ImageNotFound, SandboxGone
from sandlot.lifecycle import State
from sandlot.pacing import Pace
from sandlot.policy import Settings
from sandlot.pool import Pool, PoolLimits
from sandlot.provider import Provider
from sandlot.spec import Spec
from sandlot.strategies import Plan, Strategy, View, fixed, look_ahead, none
from sandlot.testing.fake import FakeBackend
from tests.unit.troubles import Script

pytestmark = pytest.mark.looptime
A, B, C = (Spec(image=f"dir:/{letter}") for letter in "abc")


def keep_all(view: View) -> Plan:
    """Neither warms nor evicts."""
    return Plan()


@asynccontextmanager
async def pooling(backend: FakeBackend, strategy: Strategy = keep_all, **limits: int) -> AsyncIterator[Pool]:
    """A pool on a provider of its own; afterwards nothing may exist and the books must agree."""
    settings = Settings(pace=Pace(adaptive=None), first_pause_s=0.01)
    async with Provider(backend, settings) as provider:
        async with Pool(provider, strategy=strategy, limits=PoolLimits(**limits)) as pool:
            yield pool
            await asyncio.sleep(60)
            assert sum(pool._desk.counts.values()) == pool._desk.held
            assert pool.statistics().leased == 0
        assert provider.statistics().states == {}
    assert backend.existing == frozenset()


async def test_a_lease_creates_and_the_next_one_reuses() -> None:
    """In between it was reset, and the states say so."""
    backend = FakeBackend()
    async with pooling(backend) as pool:
        async with pool.lease(A) as first:
            assert (await first.exec(":")).ok
            assert pool.provider.statistics().states == {State.LEASED: 1}
        await asyncio.sleep(1)
        assert pool.provider.statistics().states == {State.IDLE: 1}
        async with pool.lease(A) as second:
            assert second.name == first.name
        s = pool.statistics()
    assert (s.created, s.reused, s.reset, s.leases, dict(s.discarded)) == (1, 1, 1, 2, {})


async def test_a_handle_kept_beyond_its_lease_is_of_no_use() -> None:
    """Nobody can reach into the next episode, whatever they kept."""
    async with pooling(FakeBackend()) as pool:
        async with pool.lease(A) as kept:
            pass
        await asyncio.sleep(1)
        async with pool.lease(A) as now:
            assert now.name == kept.name
            with pytest.raises(Closed, match="lease"):
                await kept.exec(":")
            with pytest.raises(Closed, match="lease"):
                await kept.read("/etc/passwd")
            assert (await now.exec(":")).ok


async def test_closing_the_handle_ends_its_use_and_not_the_sandbox() -> None:
    """The block gives it back, not the handle."""
    backend = FakeBackend()
    async with pooling(backend) as pool:
        async with pool.lease(A) as box:
            await box.aclose()
            with pytest.raises(Closed):
                await box.exec(":")
            assert backend.existing == {box.name}
        await asyncio.sleep(1)
        async with pool.lease(A) as again:
            assert (again.name, (await again.exec(":")).ok) == (box.name, True)


async def test_leaving_the_block_does_not_wait_for_the_reset() -> None:
    """Nor for a deletion: both are off the caller's path."""
    backend = FakeBackend(interfere=Script().always("delete", 10.0))
    loop = asyncio.get_running_loop()
    async with pooling(backend, none) as pool:
        async with pool.lease(A):
            pass
        assert loop.time() < 1


async def test_a_dirty_sandbox_is_replaced() -> None:
    """What the reset could not restore is never handed out again."""
    backend = FakeBackend()
    async with pooling(backend) as pool:
        async with pool.lease(A) as box:
            backend.taint(box.name, "mounts", "files")
        await asyncio.sleep(1)
        assert backend.existing == frozenset()
        async with pool.lease(A) as fresh:
            assert fresh.name != box.name
        s = pool.statistics()
    assert (s.created, s.reused, dict(s.discarded)) == (2, 0, {"dirty: files, mounts": 1})


async def test_a_dirty_sandbox_is_replaced_for_who_waited_for_it() -> None:
    """Also when the pool is full."""
    backend = FakeBackend()
    async with pooling(backend, sandboxes=1) as pool:
        async with pool.lease(A) as box:
            waiting = asyncio.create_task(_name_of(pool, A))
            await asyncio.sleep(1)
            backend.taint(box.name, "ipc")
        assert await waiting != box.name


async def test_a_dead_parked_sandbox_is_never_handed_out() -> None:
    """Also one whose death nobody has heard of: it is asked before it is given."""
    backend = FakeBackend()
    async with pooling(backend) as pool:
        for heard in (True, False):
            async with pool.lease(A) as box:
                pass
            await asyncio.sleep(1)
            if heard:
                backend.kill(box.name)
            else:
                await backend.delete(box.name)
            assert await _name_of(pool, A) != box.name


async def test_a_sandbox_that_ends_during_its_lease_is_not_taken_back() -> None:
    """Its user is told why, and the next one gets another."""
    backend = FakeBackend()
    async with pooling(backend) as pool:
        async with pool.lease(A) as box:
            backend.kill(box.name, "oom")
            await asyncio.sleep(1)
            with pytest.raises(SandboxGone, match="oom"):
                await box.exec("work")
        assert await _name_of(pool, A) != box.name


async def test_requests_are_served_in_order() -> None:
    """Ten requests, one slot: first come, first served."""
    served: list[int] = []

    async def use(pool: Pool, number: int) -> None:
        async with pool.lease(A):
            served.append(number)
            await asyncio.sleep(1)

    async with pooling(FakeBackend(), sandboxes=1) as pool, asyncio.TaskGroup() as group:
        for number in range(10):
            group.create_task(use(pool, number))
            await asyncio.sleep(0.01)
    assert served == list(range(10))


async def test_a_full_pool_makes_way_for_another_spec() -> None:
    """What nobody waits for is given up, and never more exist than there is room for."""
    backend = FakeBackend(interfere=Script().always("delete", 0.5))
    async with pooling(backend, sandboxes=2) as pool:
        for spec in (A, B, C, A, B, C):
            async with pool.lease(spec):
                assert len(backend.existing) <= 2
            await asyncio.sleep(0.1)


async def test_a_cancelled_request_leaks_nothing() -> None:
    """At whatever moment, also twice: the pool goes on, and what was created serves others."""
    backend = FakeBackend(interfere=Script().always("create.before", 0.3).always("delete", 0.2))
    async with pooling(backend, sandboxes=2) as pool:
        for step in range(60):
            tasks = [asyncio.create_task(_name_of(pool, spec)) for spec in (A, B, A)]
            await asyncio.sleep(step * 0.02)
            for task in tasks[: 1 + step % 3]:
                task.cancel()
                task.cancel()
            await asyncio.wait(tasks)
            assert all(task.cancelled() or task.result() for task in tasks)


async def test_a_failed_create_is_told_to_whom_it_was_for() -> None:
    """With its type, and the others are served."""
    backend = FakeBackend(interfere=Script(create_before=[ImageNotFound("nothing there")]))
    async with pooling(backend) as pool:
        results = await asyncio.gather(*(_name_of(pool, A) for _ in range(3)), return_exceptions=True)
    assert [type(result) for result in results] == [ImageNotFound, str, str]


async def test_stock_that_cannot_be_created_is_tried_ever_less_often() -> None:
    """A missing image does not keep the pool busy, and comes back when it can."""
    script = Script(create_before=[ImageNotFound("nothing there")] * 6)
    backend = FakeBackend(interfere=script)
    async with pooling(backend, fixed({A: 1})) as pool:
        await asyncio.sleep(20)
        assert script.reached["create.before"] == 5
        await asyncio.sleep(60)
        assert pool.statistics().idle == 1


async def test_fixed_keeps_its_number_warm_and_refills_off_the_path() -> None:
    """A lease takes one, and another is on its way at once, so many at a time."""
    backend = FakeBackend(interfere=Script().always("create.before", 2.0))
    loop = asyncio.get_running_loop()
    async with pooling(backend, fixed({A: 4}), warming=2, leases_each=1) as pool:
        await asyncio.sleep(1)
        assert len(backend.existing) == 0
        await asyncio.sleep(9)
        assert pool.statistics().idle == 4
        began_s = loop.time()
        async with pool.lease(A), pool.lease(A):
            assert loop.time() - began_s < 0.1
            await asyncio.sleep(5)
            assert pool.statistics().idle == 4
        await asyncio.sleep(5)
        assert (pool.statistics().idle, dict(pool.statistics().discarded)) == (4, {"worn_out": 2})


async def test_look_ahead_hides_the_creation_time() -> None:
    """With the sequence known, leases after the first ones hardly wait, though each needs a new image."""
    specs = [Spec(image=f"dir:/{number}") for number in range(20)]
    backend = FakeBackend(interfere=Script().always("create.before", 3.0))
    async with pooling(backend, look_ahead(concurrency=2), sandboxes=8, warming=4) as pool:
        pool.expect(specs)
        upcoming = iter(specs)

        async def worker() -> None:
            for spec in upcoming:
                async with pool.lease(spec):
                    await asyncio.sleep(5)

        await asyncio.gather(worker(), worker())
        waits = list(pool._figures.waits)
    assert sum(wait > 1 for wait in waits) <= 4
    assert pool.statistics().created == len(specs)


async def test_none_keeps_nothing() -> None:
    """A sandbox that nobody waits for goes, and is not even reset; one that someone waits for is."""
    backend = FakeBackend()
    async with pooling(backend, none, sandboxes=1) as pool:
        async with pool.lease(A):
            waiting = asyncio.create_task(_name_of(pool, A))
            await asyncio.sleep(1)
        await waiting
        await asyncio.sleep(1)
        assert backend.existing == frozenset()
        assert (pool.statistics().reset, pool.statistics().reused) == (1, 1)


async def test_closing_ends_waiting_requests_and_leases_in_use() -> None:
    """Everyone is told `Closed`, and nothing is left."""
    backend = FakeBackend()
    async with Provider(backend) as provider:
        pool = Pool(provider, limits=PoolLimits(sandboxes=1))
        async with pool:
            lease = pool.lease(A)
            box = await lease.__aenter__()
            waiting = asyncio.create_task(_name_of(pool, A))
            await asyncio.sleep(1)
        assert backend.existing == frozenset()
        with pytest.raises(Closed):
            await waiting
        with pytest.raises(Closed):
            await box.exec(":")
        with pytest.raises(Closed):
            await _name_of(pool, A)
        await lease.__aexit__(None, None, None)
        await pool.aclose()


async def test_two_pools_share_a_provider_and_not_their_sandboxes() -> None:
    """Closing one leaves the other's alone."""
    backend = FakeBackend()
    async with Provider(backend) as provider, Pool(provider, strategy=keep_all) as one:
        name = await _name_of(one, A)
        await asyncio.sleep(1)
        async with Pool(provider, strategy=keep_all) as two:
            assert await _name_of(two, A) != name
        assert backend.existing == {name}
        assert await _name_of(one, A) == name


async def test_what_can_never_fit_is_refused() -> None:
    """A request beyond the pool's memory does not wait for ever."""
    async with pooling(FakeBackend(), memory=2**30) as pool:
        with pytest.raises(BadRequest, match="does not fit"):
            await _name_of(pool, Spec(memory="2GiB"))


async def test_a_reset_that_fails_or_hangs_discards() -> None:
    """Whatever the daemon answers, only a verified reset counts."""
    backend = FakeBackend()
    async with pooling(backend) as pool:
        async with pool.lease(A) as box:
            backend.hang_resets(box.name)
        await asyncio.sleep(61)
        assert backend.existing == frozenset()
        assert dict(pool.statistics().discarded) == {"dirty: timed_out": 1}


async def test_capacity_that_returns_serves_the_request() -> None:
    """The provider's own retries are inside the wait of a lease."""
    backend = FakeBackend(interfere=Script(create_before=[Capacity("full"), DaemonFault("oops")]))
    async with pooling(backend) as pool:
        assert await _name_of(pool, A)


async def test_says_what_it_holds() -> None:
    """The text of a pool tells places, waiting requests and leases."""
    async with pooling(FakeBackend(), sandboxes=3) as pool:
        assert repr(pool) == "<Pool of 3: empty; 0 waiting; 0 leases begun>"
        async with pool.lease(A):
            assert repr(pool) == "<Pool of 3: 1 leased; 0 waiting; 1 leases begun>"


async def _name_of(pool: Pool, spec: Spec) -> str:
    async with pool.lease(spec) as box:
        return box.name
