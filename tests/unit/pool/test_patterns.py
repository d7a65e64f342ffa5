"""How many sandboxes a pool makes, and how soon it is done, for runs as people have them: simulated, in virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pytest

from sandlot.pacing import Pace
from sandlot.policy import Settings
from sandlot.pool import Pool, PoolLimits
from sandlot.provider import Provider
from sandlot.spec import Spec
from sandlot.strategies import Strategy, fixed, look_ahead, none
from sandlot.testing.fake import FakeBackend
from tests.unit.troubles import Script

pytestmark = pytest.mark.looptime
CONCURRENCY = 4
SPECS = [Spec(image=f"dir:/{number}") for number in range(128)]
LITTLE = 1.05  # what chance may add
SHORT, LONG = (1.0, 0.05), (1.0, 5.0)  # seconds of a create, and of a lease


@dataclass(frozen=True, slots=True)
class Outcome:
    created: int
    seconds: float


async def simulated(
    specs: Sequence[Spec], strategy: Strategy, seconds: tuple[float, float], places: int, *, dirty: bool = False
) -> Outcome:
    """All of these leases, some at a time; those of one run differ by a third, and are the same in another.

    `dirty`: no reset leaves a clean sandbox.
    """
    create_s, lease_s = seconds
    dice, clock = random.Random(1), asyncio.get_running_loop().time
    turns = iter([(spec, lease_s * dice.uniform(0.7, 1.3)) for spec in specs])
    backend = FakeBackend(interfere=Script().always("create.before", create_s).always("delete", 0.05))

    async def work(pool: Pool) -> None:
        for spec, lasts_s in turns:
            async with pool.lease(spec) as box:
                await asyncio.sleep(lasts_s)
                if dirty:
                    backend.taint(box.name, "mounts")

    async with (
        Provider(backend, Settings(pace=Pace(adaptive=None))) as provider,
        Pool(provider, strategy=strategy, limits=PoolLimits(sandboxes=places)) as pool,
    ):
        began_s = clock()
        pool.expect(specs)
        await asyncio.gather(*(work(pool) for _ in range(CONCURRENCY)))
        return Outcome(pool.statistics().created, clock() - began_s)


def grouped(each: int) -> list[Spec]:
    return [SPECS[number // each] for number in range(128)]


def shuffled() -> list[Spec]:
    return random.Random(7).sample(grouped(4), 128)


def looking_ahead() -> Strategy:
    return look_ahead(concurrency=CONCURRENCY)


@pytest.mark.parametrize("places", [4, 12])
async def test_short_rollouts_of_many_environments_make_few_more_sandboxes_than_environments(places: int) -> None:
    """32 environments, 4 rollouts of each: 32 would do. The first ones are made before it is known how short leases are."""
    outcome = await simulated(grouped(4), looking_ahead(), SHORT, places)
    assert 32 <= outcome.created <= 32 + 2 * CONCURRENCY + places
    each_its_own = await simulated(grouped(4), none, SHORT, places)
    assert outcome.seconds < 0.7 * each_its_own.seconds
    assert each_its_own.created > 100


@pytest.mark.parametrize("seconds", [SHORT, LONG])
async def test_rollouts_of_one_image_make_as_many_as_run_at_once(seconds: tuple[float, float]) -> None:
    """No more, and no later than where just that many are kept."""
    specs = grouped(128)
    outcome = await simulated(specs, looking_ahead(), seconds, CONCURRENCY)
    kept = await simulated(specs, fixed({SPECS[0]: CONCURRENCY}), seconds, CONCURRENCY)
    assert outcome.created <= CONCURRENCY
    assert outcome.seconds <= LITTLE * kept.seconds


@pytest.mark.parametrize("seconds", [SHORT, LONG])
@pytest.mark.parametrize("pattern", [lambda: grouped(4), lambda: grouped(8), lambda: grouped(1), shuffled])
async def test_no_pattern_is_worse_off_than_with_simpler_strategies(
    pattern: Callable[[], list[Spec]], seconds: tuple[float, float]
) -> None:
    """Neither in sandboxes nor in time, where places are as few as requests at once."""
    specs = pattern()
    outcome = await simulated(specs, looking_ahead(), seconds, CONCURRENCY)
    for simple in (fixed(dict.fromkeys(specs, 1)), none):
        other = await simulated(specs, simple, seconds, CONCURRENCY)
        assert outcome.created <= LITTLE * other.created
        assert outcome.seconds <= LITTLE * other.seconds


@pytest.mark.parametrize("seconds", [SHORT, LONG])
async def test_environments_that_cannot_be_reset_are_made_for_each_rollout_and_at_once(seconds: tuple[float, float]) -> None:
    """Nothing is gained by waiting for a sandbox that will not come back."""
    outcome = await simulated(grouped(4), looking_ahead(), seconds, CONCURRENCY, dirty=True)
    other = await simulated(grouped(4), none, seconds, CONCURRENCY, dirty=True)
    assert outcome.created <= LITTLE * other.created
    assert outcome.seconds <= LITTLE * other.seconds


async def test_a_lease_that_does_not_end_holds_up_nobody_for_long() -> None:
    """Who waited for it has another made after two creation times or so."""
    backend = FakeBackend(interfere=Script().always("create.before", 1.0))
    specs, clock = grouped(4)[:64], asyncio.get_running_loop().time
    async with (
        Provider(backend, Settings(pace=Pace(adaptive=None))) as provider,
        Pool(provider, strategy=looking_ahead(), limits=PoolLimits(sandboxes=CONCURRENCY)) as pool,
    ):
        pool.expect(specs)
        for spec in specs[:8]:
            async with pool.lease(spec):
                await asyncio.sleep(0.05)
        async with pool.lease(specs[8]):
            began_s = clock()
            async with pool.lease(specs[9]):
                assert 0 < clock() - began_s < 6
