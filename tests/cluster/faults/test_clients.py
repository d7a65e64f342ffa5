"""However a client of a cluster ends, nothing of it is left when its lease has been over for half a minute."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import ExitStack

import pytest

import sandlot
from cluster import Cluster
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.credentials import credentials
from sandlot.backends.kubernetes.reaper import Reaped, Reaper
from tests.cluster.faults.census import census, wait_nothing, wait_without_containers
from tests.cluster.faults.clients import GRACE_S, LEASE_S, LEFT_S, PATIENCE_S, Client, client, options

BURST = 6


async def test_clients_that_end_leave_nothing_and_harm_nobody(cluster: Cluster, space: str, image: str) -> None:
    """Five clients of one namespace: one is killed in mid-burst, one is interrupted, two have clocks that are hours off.

    What the killed one left is deleted by the others. The interrupted one has deleted everything before it ends. Nobody is
    taken for dead because of a clock, and nobody's sandbox is touched by another: a command runs on all the time.
    """
    provider = sandlot.kubernetes(options=options(space), kubeconfig=cluster.kubeconfig)
    async with provider:
        with ExitStack() as stack:

            async def start(count: int, *more: str) -> Client:
                made = client(cluster.kubeconfig, space, image, count, *more)
                return await asyncio.to_thread(stack.enter_context, made)

            starting = start(BURST), start(2), start(1, "-7200"), start(1, "7200")
            dying, ending, late, early = await asyncio.gather(*starting)
            box = await provider.create(sandlot.Spec(image=image))
            job = await box.start("while :; do sleep 1; done")
            await asyncio.to_thread(dying.usable, 2)
            dying.process.kill()
            assert census(cluster, space, client=dying.id).pods, "it had begun its burst"

            lasting = [*await asyncio.to_thread(late.usable, 1), *await asyncio.to_thread(early.usable, 1), box.name]
            await asyncio.to_thread(ending.usable, 2)
            assert await asyncio.to_thread(ended, ending, signal.SIGINT) != 0
            found = census(cluster, space, client=ending.id)
            assert (found.pods, found.leases) == ((), ())

            assert not await asyncio.to_thread(wait_nothing, cluster, space, LEFT_S, client=dying.id)
            await asyncio.to_thread(outlive_leases, cluster, space, sorted(lasting))
            assert sorted(census(cluster, space).pods) == sorted(lasting)
            for one in (late, early):
                await asyncio.to_thread(ended, one, signal.SIGINT)
        await job.signal(signal.SIGKILL)
        assert (await job.wait()).signal == signal.SIGKILL
    assert provider.closing is not None
    assert (provider.closing.created, provider.closing.gone, provider.closing.left) == (1, 1, ())
    assert not provider.statistics().failures


async def test_creates_that_are_cancelled_at_any_moment_leave_nothing(cluster: Cluster, space: str, spec: sandlot.Spec) -> None:
    """Spread over what a whole create takes, and closing the provider while the rest of the deletions is under way."""
    async with sandlot.kubernetes(options=options(space), kubeconfig=cluster.kubeconfig) as provider:
        began_s = time.monotonic()
        await provider.create(spec)
        whole_s = time.monotonic() - began_s
        await cancelled(provider, spec, [whole_s * share for share in (0, 0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 1.0)])
    assert provider.closing is not None
    assert provider.closing.left == ()
    assert provider.closing.created == provider.closing.gone
    found = census(cluster, space)
    assert (found.pods, found.leases) == ((), ())


@pytest.mark.full
async def test_creates_that_are_cancelled_at_many_moments_leave_nothing(
    cluster: Cluster, space: str, spec: sandlot.Spec
) -> None:
    """A hundred of them, a few at a time, so that each stage is hit, on every way to a link."""
    for connect in ("dial-in", "exec-bridge"):
        made = options(space, connect=connect)
        async with sandlot.kubernetes(options=made, kubeconfig=cluster.kubeconfig) as provider:
            for part in range(10):
                await cancelled(provider, spec, [0.02 * part + 0.15 * number for number in range(5)])
        assert provider.closing is not None
        assert provider.closing.left == ()
        assert census(cluster, space).pods == ()


@pytest.mark.full
async def test_daemons_of_a_client_that_nobody_survives_end_by_themselves(cluster: Cluster, space: str, image: str) -> None:
    """When their grace is over no process is left on the node; the objects go when somebody sweeps."""
    with client(cluster.kubeconfig, space, image, 3) as dying:
        await asyncio.to_thread(dying.usable, 3)
        dying.process.kill()
        left = await asyncio.to_thread(wait_without_containers, cluster, space, GRACE_S + PATIENCE_S)
        assert left.containers == ()
        assert len(left.pods) == 3
        async with await Api.open(credentials(cluster.kubeconfig, None)) as api:
            await api.request("GET", "/version")  # tells the time
            assert await Reaper(api, space).sweep() == Reaped(clients=(dying.id,))


async def cancelled(provider: sandlot.Provider, spec: sandlot.Spec, after_s: list[float]) -> None:
    """Create one for each of these durations, and cancel it then; one that was faster is closed."""

    async def one(pause_s: float) -> None:
        creating = asyncio.create_task(provider.create(spec))
        await asyncio.wait([creating], timeout=pause_s)
        if not creating.cancel():
            await creating.result().aclose()
        await asyncio.wait([creating])
        if not creating.cancelled():
            assert creating.exception() is None

    await asyncio.gather(*map(one, after_s))


def ended(one: Client, number: signal.Signals) -> int:
    """Tell it to end; what it ended with."""
    one.process.send_signal(number)
    return one.process.wait(timeout=PATIENCE_S)


def outlive_leases(cluster: Cluster, namespace: str, names: list[str]) -> None:
    """For longer than two leases these sandboxes must all be there."""
    end = time.monotonic() + 2.5 * LEASE_S
    while time.monotonic() < end:
        there = census(cluster, namespace).pods
        assert set(names) <= set(there)
        time.sleep(0.5)
