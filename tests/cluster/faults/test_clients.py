"""However a client of a cluster ends, nothing of it is left when its lease has been over for half a minute."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

import sandlot
from cluster import Cluster
from tests.cluster.faults.census import census, wait_nothing
from tests.cluster.faults.clients import AFTER_LEASE_S, LEASE_S, client, options

COUNT = 8
TOGETHER_S = LEASE_S + AFTER_LEASE_S


async def test_a_client_that_is_killed_in_mid_burst_leaves_nothing_and_harms_nobody(
    cluster: Cluster, space: str, image: str
) -> None:
    """Another client deletes what it left; the other's own sandbox answers all the time."""
    opened = sandlot.kubernetes(options=options(space), kubeconfig=cluster.kubeconfig)
    async with opened as other:
        box = await other.create(sandlot.Spec(image=image))
        with client(cluster.kubeconfig, space, image, COUNT) as dying:
            await asyncio.to_thread(dying.usable, 2)
            dying.process.kill()
            found = census(cluster, space, client=dying.id)
            assert found.pods, "it had begun its burst"
            left = await asyncio.to_thread(wait_nothing, cluster, space, TOGETHER_S, client=dying.id)
        assert not left
        assert (await box.exec("echo alive")).stdout == "alive\n"
    assert opened.closing is not None
    assert (opened.closing.created, opened.closing.gone, opened.closing.left) == (1, 1, ())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_client_that_is_told_to_end_leaves_nothing_behind(
    cluster: Cluster, space: str, image: str, number: signal.Signals
) -> None:
    """Its own clean-up does it, before the process has ended."""
    with client(cluster.kubeconfig, space, image, COUNT) as ending:
        ending.usable(2)
        ending.process.send_signal(number)
        ending.process.wait(timeout=60)
        found = census(cluster, space)
        assert (found.pods, found.leases) == ((), ())


async def test_creates_that_are_cancelled_at_any_moment_leave_nothing(cluster: Cluster, space: str, spec: sandlot.Spec) -> None:
    """Some before their pod exists, some while it starts, some when its link is being opened."""
    async with sandlot.kubernetes(options=options(space), kubeconfig=cluster.kubeconfig) as provider:
        creating = [asyncio.create_task(provider.create(spec)) for _ in range(COUNT)]
        for number, task in enumerate(creating):
            await asyncio.sleep(0.03 * number**1.5)
            task.cancel()
        ended = await asyncio.gather(*creating, return_exceptions=True)
        assert all(isinstance(one, (asyncio.CancelledError, sandlot.Sandbox)) for one in ended), ended
        for box in ended:
            if isinstance(box, sandlot.Sandbox):
                await box.aclose()
        closing = await provider.aclose()
    assert closing.left == ()
    found = census(cluster, space)
    assert (found.pods, found.leases) == ((), ())


def test_a_client_whose_clock_is_wrong_is_neither_taken_for_dead_nor_kills(cluster: Cluster, space: str, image: str) -> None:
    """Two hours behind and two ahead: both live through many leases side by side."""
    with (
        client(cluster.kubeconfig, space, image, 1, "-7200") as late,
        client(cluster.kubeconfig, space, image, 1, "7200") as early,
    ):
        names = sorted(late.usable(1) + early.usable(1))
        assert not wait_for_change(cluster, space, names, seconds=2.5 * LEASE_S)
        for one in (late, early):
            one.process.send_signal(signal.SIGINT)
            one.process.wait(timeout=60)


def wait_for_change(cluster: Cluster, namespace: str, names: list[str], *, seconds: float) -> tuple[str, ...]:
    """Which of these sandboxes went within so many seconds."""
    end = time.monotonic() + seconds
    missing: tuple[str, ...] = ()
    while time.monotonic() < end and not missing:
        there = census(cluster, namespace).pods
        missing = tuple(name for name in names if name not in there)
        time.sleep(0.5)
    return missing
