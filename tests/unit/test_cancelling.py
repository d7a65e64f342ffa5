"""`tests.cancelling`: points are those of a call and of what runs for it, and of nothing else."""

from __future__ import annotations

import asyncio

import pytest

from tests.cancelling import Plan, Who, count_waits


class Call:
    """Waits twice itself and, in between, twice in a task of its own, which goes on when the call is cancelled."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.part: asyncio.Task[None] | None = None

    async def __call__(self) -> str:
        await self._step("first")
        self.part = asyncio.create_task(self._part())
        await asyncio.wait([self.part])
        return "done"

    async def _part(self) -> None:
        await self._step("second")
        await self._step("third")

    async def _step(self, name: str) -> None:
        await asyncio.sleep(0)
        self.steps.append(name)


async def planned(at: int, who: Who = "the caller") -> tuple[Plan, Call, object]:
    count_waits(asyncio.get_running_loop())
    plan, call = Plan(at, who), Call()
    result = await plan.run(call)
    if call.part is not None:
        await asyncio.wait([call.part])
    return plan, call, result


async def test_a_call_that_is_not_cancelled_is_counted_only() -> None:
    """Four points: of the call itself and of its task. What else runs has none."""
    plan, call, result = await planned(0)
    other = asyncio.create_task(asyncio.sleep(0))
    await other
    assert (plan.passed, plan.reached, result) == (4, False, "done")
    assert call.steps == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("at", "who", "steps"),
    [
        (1, "the caller", []),
        (3, "the caller", ["first", "second", "third"]),
        (3, "every task", ["first"]),
        (4, "every task", ["first", "second"]),
    ],
)
async def test_it_is_cancelled_where_it_should_be(at: int, who: Who, steps: list[str]) -> None:
    """The caller alone, or with everything that runs for it."""
    plan, call, result = await planned(at, who)
    assert plan.reached
    assert isinstance(result, asyncio.CancelledError)
    assert call.steps == steps


async def test_a_call_that_holds_out_is_cancelled_twice() -> None:
    """At the next point, wherever that is."""
    count_waits(asyncio.get_running_loop())
    told = 0

    async def stubborn() -> int:
        nonlocal told
        for _ in range(5):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                told += 1
        return told

    assert await Plan(2, "the caller twice").run(stubborn) == 2
