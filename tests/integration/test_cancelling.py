"""Calls on this machine that are cancelled at every point where they wait leave nothing, whoever is cancelled."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Final, get_args

import pytest

import sandlot
from sandlot.backends.local import LocalBackend
from sandlot.backends.local.machine import destroy, find_leased
from sandlot.backends.local.runtime import runtime_dir
from sandlot.spec import Owner
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
    assert mark.wait_until_nothing_is_left(60) == {}


@pytest.mark.parametrize("owner", get_args(Owner))
async def test_closing_goes_on_wherever_it_is_interrupted(owner: Owner) -> None:
    """By the end of an event loop, which cancels all that runs for it: the host has removed everything when the close has
    ended, or is left to itself with what is leased."""
    count_waits(asyncio.get_running_loop())
    lease_s = 3600.0 if owner == "leased" else None
    for at in itertools.count(1):
        assert at <= MOST, "it waits again and again"
        provider = sandlot.local()
        await provider.start()
        box = await provider.create(SPEC, owner=owner, lease_s=lease_s)
        assert isinstance(provider.backend, LocalBackend)
        host = runtime_dir() / provider.backend.host_id
        plan = Plan(at, "every task")
        await plan.run(provider.aclose)
        closing = await provider.aclose()
        assert closing.left == ()
        if owner == "leased":
            assert closing.kept == (box.name,)
            assert await destroy(await find_leased(runtime_dir(), box.name), box.name)
        else:
            assert not host.exists()
        if not plan.reached:
            break
    assert at > 4
