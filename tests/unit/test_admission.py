"""The turnstile: callers wait for the gate's word, and one that is cancelled holds nothing up."""

from __future__ import annotations

import asyncio

import pytest

from sandlot.adaptive import Adaptive
from sandlot.admission import Turnstile
from sandlot.errors import Closed
from sandlot.pacing import Outcome, Pace

pytestmark = pytest.mark.looptime
SERVED = Outcome("served")


def one_at_a_time() -> Turnstile:
    return Turnstile(Pace(in_flight=1, adaptive=None))


async def test_lets_in_at_the_rate() -> None:
    """Each waits for its token, on the loop's own clock."""
    turnstile = Turnstile(Pace(rate_per_s=2, burst=1, adaptive=None))
    loop = asyncio.get_running_loop()
    times = []
    for _ in range(4):
        turnstile.leave(await turnstile.enter("image"), SERVED)
        times.append(loop.time())
    assert times == pytest.approx([0.0, 0.5, 1.0, 1.5])


async def test_a_turn_that_comes_in_the_moment_of_cancellation_is_given_back() -> None:
    """The next one gets it; otherwise the gate would stay shut for ever."""
    turnstile = one_at_a_time()
    first = await turnstile.enter("image")
    cancelled, waiting = (asyncio.create_task(turnstile.enter("image")) for _ in range(2))
    await asyncio.sleep(0)
    turnstile.leave(first, SERVED)
    cancelled.cancel()
    await asyncio.wait([cancelled, waiting], timeout=1)
    assert [cancelled.cancelled(), waiting.done(), turnstile.statistics().in_flight] == [True, True, 1]


async def test_a_cancelled_waiter_is_passed_over() -> None:
    """Its place in the queue is closed up."""
    turnstile = one_at_a_time()
    first = await turnstile.enter("image")
    cancelled, waiting = (asyncio.create_task(turnstile.enter("image")) for _ in range(2))
    await asyncio.sleep(1)
    cancelled.cancel()
    await asyncio.sleep(1)
    turnstile.leave(first, SERVED)
    await asyncio.wait_for(waiting, 1)
    assert turnstile.statistics().queued == 0


async def test_closing_sends_every_waiter_away() -> None:
    """And whoever comes later."""
    turnstile = one_at_a_time()
    first = await turnstile.enter("image")
    waiting = [asyncio.create_task(turnstile.enter("image")) for _ in range(3)]
    await asyncio.sleep(1)
    turnstile.close()
    results = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(result) for result in results] == [Closed] * 3
    turnstile.leave(first, SERVED)
    with pytest.raises(Closed):
        await turnstile.enter("image")
    assert turnstile.statistics().in_flight == 0


async def test_leaving_says_whether_the_pace_was_cut() -> None:
    """So that whoever leaves can write it down."""
    turnstile = Turnstile(Pace(adaptive=Adaptive(start=8)))
    assert turnstile.leave(await turnstile.enter("image"), SERVED) is False
    assert turnstile.leave(await turnstile.enter("image"), Outcome("throttled", 1.0)) is True
    assert repr(turnstile) == "<Turnstile 0 queued, 0 of 4 in flight, 2 started, 1 cuts>"
