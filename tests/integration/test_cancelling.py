"""Calls on this machine that are cancelled at every point where they wait leave nothing, whoever is cancelled."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Final, get_args

import pytest

import sandlot
from sandlot.testing.observer import footprint
from tests.cancelling import Plan, Who, count_waits

SPEC: Final = sandlot.Spec(image="host", limits="best-effort")
MOST: Final = 400
"""A call that waits more often does not end."""


async def create_use_and_close(provider: sandlot.Provider) -> None:
    async with await provider.create(SPEC) as box:
        await box.exec("true")


@pytest.mark.parametrize("who", get_args(Who))
async def test_whole_lives_cancelled_wherever_they_wait(who: Who) -> None:
    """Create, command and close, each at a later point than the one before, until one ends before its point."""
    count_waits(asyncio.get_running_loop())
    others = footprint(os.getpid())
    async with sandlot.local() as provider:
        for at in itertools.count(1):
            assert at <= MOST, "it waits again and again"
            plan = Plan(at, who)
            await plan.run(lambda: create_use_and_close(provider))
            if not plan.reached:
                break
        mark = footprint(os.getpid()).without(others)
    assert at > 4
    assert provider.closing is not None
    assert (provider.closing.left, provider.closing.gone) == ((), provider.closing.created)
    assert mark.wait_until_nothing_is_left(10) == {}
