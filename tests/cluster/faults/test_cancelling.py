"""Whoever is cancelled, wherever a call waits: what it made or was about to delete is gone, counted from outside."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, get_args

import pytest

import sandlot
from cluster import Cluster
from sandlot.backends.kubernetes import KubernetesBackend
from sandlot.backends.kubernetes.options import Connect
from tests.cancelling import Plan, Who, count_waits
from tests.cluster.faults.census import SANDBOXES, wait_nothing
from tests.cluster.faults.conftest import Record
from tests.cluster.faults.ways import USUAL_AND_FULL, by

BATCH: Final = 8
FEWEST: Final = 4
"""Points that any of these calls has."""
MOST: Final = 400
"""A call that waits more often does not end."""
ONCE: Final[Who] = "the caller"

One = Callable[[Plan], Awaitable[None]]
Check = Callable[[], Awaitable[None]]


async def sweep(who: Who, one: One, check: Check) -> int:
    """Do it with a cancellation at each point from the first on, a few at a time, and check after these; how many there are.

    It ends when all of a few have ended before their point was reached.
    """
    for first in itertools.count(1, BATCH):
        assert first <= MOST, "it waits again and again"
        plans = [Plan(at, who) for at in range(first, first + BATCH)]
        await asyncio.gather(*(one(plan) for plan in plans))
        await check()
        if not any(plan.reached for plan in plans):
            return first - 1
    raise AssertionError


@asynccontextmanager
async def opened(cluster: Cluster, space: str, connect: Connect) -> AsyncIterator[sandlot.Provider]:
    """A provider whose tasks can be counted; at its end all that it made is gone."""
    count_waits(asyncio.get_running_loop())
    async with sandlot.kubernetes(options=by(connect, cluster, space), kubeconfig=cluster.kubeconfig) as provider:
        yield provider
    assert provider.closing is not None
    assert provider.closing.left == ()
    assert provider.closing.created == provider.closing.gone


async def create(provider: sandlot.Provider, spec: sandlot.Spec, plan: Plan) -> None:
    """One whose create may be cancelled; it is closed if it was faster."""
    made = await plan.run(partial(provider.create, spec))
    if isinstance(made, sandlot.Sandbox):
        await made.aclose()
    else:
        assert isinstance(made, asyncio.CancelledError)


async def delete(provider: sandlot.Provider, spec: sandlot.Spec, plan: Plan) -> None:
    """One whose deletion may be cancelled, which changes nothing of it."""
    box = await provider.create(spec)
    await plan.run(box.aclose)


async def nothing_runs(cluster: Cluster, space: str, record: Record) -> None:
    left = await asyncio.to_thread(wait_nothing, cluster, space, kinds=SANDBOXES)
    record("a batch of cancellations", left)
    assert not left, left


async def cancelled_everywhere(who: Who, provider: sandlot.Provider, spec: sandlot.Spec, check: Check) -> None:
    """A create, and a deletion."""
    assert await sweep(who, partial(create, provider, spec), check) >= FEWEST
    assert await sweep(who, partial(delete, provider, spec), check) >= FEWEST


@pytest.mark.parametrize("connect", USUAL_AND_FULL)
async def test_creates_and_deletions_cancelled_wherever_they_wait(
    cluster: Cluster, space: str, spec: sandlot.Spec, record: Record, connect: Connect
) -> None:
    """At every point of a create, and of a deletion."""
    async with opened(cluster, space, connect) as provider:
        await cancelled_everywhere(ONCE, provider, spec, partial(nothing_runs, cluster, space, record))


@pytest.mark.full
@pytest.mark.parametrize("who", [one for one in get_args(Who) if one != ONCE])
@pytest.mark.parametrize("connect", ["dial-in", "dial-out", "exec-bridge"])
async def test_cancelled_again_and_everywhere(
    cluster: Cluster, space: str, spec: sandlot.Spec, record: Record, connect: Connect, who: Who
) -> None:
    """The caller twice, and all that runs for a call, as the end of an event loop does it."""
    async with opened(cluster, space, connect) as provider:
        await cancelled_everywhere(who, provider, spec, partial(nothing_runs, cluster, space, record))


@pytest.mark.full
@pytest.mark.parametrize("who", get_args(Who))
async def test_closing_cancelled_wherever_it_waits(
    cluster: Cluster, space: str, spec: sandlot.Spec, record: Record, who: Who
) -> None:
    """With one sandbox there and another on its way. Closing again ends what the first one left to do."""
    count_waits(asyncio.get_running_loop())

    async def one(plan: Plan) -> None:
        provider = sandlot.kubernetes(options=by("dial-in", cluster, space), kubeconfig=cluster.kubeconfig)
        await provider.start()
        assert isinstance(provider.backend, KubernetesBackend)
        await provider.create(spec)
        coming = asyncio.create_task(provider.create(spec))
        await asyncio.sleep(0)
        ended: Any = await plan.run(provider.aclose)
        closing = await provider.aclose() if isinstance(ended, asyncio.CancelledError) else ended
        assert (closing.created, closing.left) == (closing.gone, ())
        await asyncio.wait([coming])
        assert isinstance(coming.exception(), sandlot.Closed)

    async def check() -> None:
        left = await asyncio.to_thread(wait_nothing, cluster, space)
        record("a batch of closings", left)
        assert not left, left

    assert await sweep(who, one, check) >= FEWEST
