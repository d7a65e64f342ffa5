"""Whatever callers and backend do to each other, nothing exists in the end and the counts add up.

Schedules are drawn by hypothesis and run on virtual time: callers come, hold, leave and are cancelled up to twice, while
creates fail before or after their sandbox exists, hang or are throttled, deletes fail and sandboxes die.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import looptime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.accounts import Closing
from sandlot.errors import Capacity, DaemonFault, ImageNotFound, SandlotError, Throttled, TransportLost
from sandlot.janitor import Deletion
from sandlot.pacing import Pace
from sandlot.policy import Settings
from sandlot.pool import Pool, PoolLimits
from sandlot.provider import Provider
from sandlot.spec import Spec
from sandlot.strategies import Strategy, fixed, look_ahead, none
from sandlot.testing.fake import FakeBackend, FakeCommand, FakeResult
from tests.unit.troubles import Script, Trouble

SPECS = tuple(Spec(image=f"dir:/{letter}") for letter in "abc")
IMPATIENT = Settings(
    pace=Pace(in_flight=4),
    deletion=Deletion(attempt_s=2.0, create_grace_s=0.5, settle_s=12.0, give_up_after_s=10_000.0),
    create_timeout_s=3.0,
    ready_timeout_s=2.0,
    attempts=2,
    patience_s=10.0,
)


def on_virtual_time(work: Coroutine[Any, Any, None]) -> None:
    """Run to the end on a loop whose clock jumps over every wait; a fault in any of its tasks fails the test."""
    faults: list[dict[str, Any]] = []

    def new_loop() -> asyncio.AbstractEventLoop:
        loop = looptime.new_event_loop()
        loop.set_exception_handler(lambda _, context: faults.append(context))
        return loop

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work)
    assert not faults


def assert_nothing_left(backend: FakeBackend, closing: Closing | None) -> None:
    assert backend.existing == frozenset()
    assert closing is not None
    assert (closing.left, closing.created) == ((), closing.gone)
    assert closing.created >= backend.created


async def settle() -> None:
    """Only the task that asks may be left once the provider has closed, but for requests the fake itself still works on."""
    await asyncio.sleep(60)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in others if "FakeBackend" not in repr(task)]


# --- every await point ----------------------------------------------------------------------------------------------
async def turns(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


@pytest.mark.parametrize("between", [0, 1, 3])
def test_cancelling_twice_at_every_await_point_of_create(between: int) -> None:
    """The create is cancelled after each possible number of turns of the loop, then once more some turns later."""

    async def storm() -> None:
        for after in range(1000):
            backend = FakeBackend(interfere=_two_turns)
            async with Provider(backend) as provider:
                task = asyncio.create_task(provider.create(SPECS[0]))
                await turns(after)
                ended_first = task.done()
                task.cancel()
                await turns(between)
                task.cancel()
                await asyncio.wait([task])
            assert_nothing_left(backend, provider.closing)
            if ended_first:
                assert after > 10
                return
        raise AssertionError("the create never ended")

    on_virtual_time(storm())


@pytest.mark.parametrize("between", [0, 1, 3])
def test_cancelling_twice_at_every_await_point_of_a_lease(between: int) -> None:
    """As above, through acquire, use and return, with a parked sandbox or without."""

    async def one_lease(pool: Pool) -> None:
        async with pool.lease(SPECS[0]) as box:
            await box.exec(":")

    async def storm() -> None:
        for parked in (False, True):
            for after in range(1000):
                backend = FakeBackend(interfere=_two_turns)
                async with Provider(backend) as provider, Pool(provider, limits=PoolLimits(sandboxes=1)) as pool:
                    if parked:
                        await one_lease(pool)
                    task = asyncio.create_task(one_lease(pool))
                    await turns(after)
                    ended_first = task.done()
                    task.cancel()
                    await turns(between)
                    task.cancel()
                    await asyncio.wait([task])
                    await one_lease(pool)
                assert_nothing_left(backend, provider.closing)
                if ended_first:
                    break

    on_virtual_time(storm())


async def _two_turns(point: str, name: str) -> None:
    if point != "watch":
        await turns(2)


# --- drawn schedules ------------------------------------------------------------------------------------------------
def trouble(*errors: Callable[[], Exception], longest_s: float = 5.0) -> st.SearchStrategy[list[Trouble]]:
    one = st.none() | st.floats(0, longest_s) | st.sampled_from(errors).map(lambda make: make())
    return st.lists(one, max_size=8)


creates = trouble(
    lambda: TransportLost("reset"),
    lambda: Capacity("full"),
    lambda: Throttled("later", retry_after_s=0.7),
    lambda: DaemonFault("oops"),
    lambda: ImageNotFound("nothing there"),
    lambda: OSError("network is down"),
)
deletes = trouble(lambda: TransportLost("reset"), lambda: DaemonFault("oops"), lambda: OSError("network is down"))
troubles = st.fixed_dictionaries({"create_before": creates, "create_after": creates, "delete": deletes, "reopen": deletes})


@dataclass(frozen=True)
class Caller:
    """Comes, holds what it got, may have it die or dirtied, and is cancelled at these times if it is still there."""

    spec: Spec
    comes_s: float
    holds_s: float
    cancelled_s: tuple[float, ...]
    fate: str


callers = st.lists(
    st.builds(
        Caller,
        st.sampled_from(SPECS),
        st.floats(0, 5),
        st.floats(0, 3),
        st.lists(st.floats(0, 8), max_size=2).map(lambda times: tuple(sorted(times))),
        st.sampled_from(["", "", "", "dies", "dirty", "deleted", "cut"]),
    ),
    max_size=12,
)
first_commands = st.lists(st.none() | st.floats(0, 3), max_size=6)


def a_backend(listed: dict[str, list[Trouble]], pauses: list[float | None]) -> FakeBackend:
    waits = iter(pauses)

    async def respond(command: FakeCommand) -> FakeResult:
        await asyncio.sleep(next(waits, None) or 0.0)
        return FakeResult()

    return FakeBackend(respond=respond, interfere=Script(**listed))


async def suffer(backend: FakeBackend, name: str, fate: str) -> None:
    if name in backend.existing:
        if fate == "dies":
            backend.kill(name, "oom")
        elif fate == "dirty":
            backend.taint(name, "files")
        elif fate == "deleted":
            await backend.delete(name)
        elif fate == "cut":
            backend.cut(name)


async def all_callers(listed: list[Caller], use: Callable[[Caller], Coroutine[Any, Any, None]]) -> None:
    loop = asyncio.get_running_loop()

    async def live(caller: Caller) -> None:
        await asyncio.sleep(caller.comes_s)
        with suppress(SandlotError, OSError):
            await use(caller)

    tasks = []
    for caller in listed:
        task = asyncio.create_task(live(caller))
        tasks.append(task)
        for at in caller.cancelled_s:
            loop.call_later(at, task.cancel)
    if tasks:
        await asyncio.wait(tasks)
    for task in tasks:
        assert task.cancelled() or task.exception() is None


@settings(max_examples=80, deadline=None)
@given(callers, troubles, first_commands, st.floats(0, 8))
def test_a_provider_leaves_nothing(
    listed: list[Caller], bad: dict[str, list[Trouble]], pauses: list[float | None], closes_s: float
) -> None:
    """Closed in the middle of it all or at the end."""
    backend = a_backend(bad, pauses)

    async def storm() -> None:
        provider = Provider(backend, IMPATIENT)
        await provider.start()

        async def use(caller: Caller) -> None:
            async with await provider.create(caller.spec) as box:
                await suffer(backend, box.name, caller.fate)
                await asyncio.sleep(caller.holds_s)
                await box.exec(":")

        closing = asyncio.get_running_loop().call_later(closes_s, lambda: asyncio.ensure_future(provider.aclose()))
        await all_callers(listed, use)
        closing.cancel()
        await provider.aclose()
        await settle()
        assert_nothing_left(backend, provider.closing)

    on_virtual_time(storm())


strategies: st.SearchStrategy[Strategy] = st.sampled_from([none, fixed({SPECS[0]: 1, SPECS[1]: 1}), look_ahead(concurrency=2)])
limits = st.builds(
    PoolLimits, sandboxes=st.integers(1, 4), leases_each=st.none() | st.integers(1, 2), warming=st.integers(0, 2)
)


@settings(max_examples=80, deadline=None)
@given(callers, troubles, first_commands, strategies, limits, st.none() | st.floats(0, 8))
def test_a_pool_leaves_nothing_and_forgets_nobody(
    listed: list[Caller],
    bad: dict[str, list[Trouble]],
    pauses: list[float | None],
    strategy: Strategy,
    room: PoolLimits,
    closes_s: float | None,
) -> None:
    """Every caller is served, failed or cancelled; never more exist than there is room for in the pool's own books."""
    backend = a_backend(bad, pauses)

    async def storm() -> None:
        async with Provider(backend, IMPATIENT) as provider:
            pool = Pool(provider, strategy=strategy, limits=room)
            async with pool:
                pool.expect(caller.spec for caller in sorted(listed, key=lambda caller: caller.comes_s))

                async def use(caller: Caller) -> None:
                    async with pool.lease(caller.spec) as box:
                        assert pool.statistics().leased <= room.sandboxes
                        await suffer(backend, box.name, caller.fate)
                        await asyncio.sleep(caller.holds_s)
                        await box.exec(":")

                if closes_s is not None:
                    asyncio.get_running_loop().call_later(closes_s, lambda: asyncio.ensure_future(pool.aclose()))
                async with asyncio.timeout(3600):
                    await all_callers(listed, use)
                if closes_s is None:
                    await asyncio.sleep(300)
                    s = pool.statistics()
                    assert (s.waiting, s.leased) == (0, 0)
                    assert s.created == s.idle + sum(s.discarded.values())
        await settle()
        assert_nothing_left(backend, provider.closing)

    on_virtual_time(storm())
