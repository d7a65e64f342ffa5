"""However a client of a cluster ends, nothing of it is left when its lease has been over for half a minute."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import ExitStack
from functools import partial

import pytest

import sandlot
from cluster import Cluster
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.credentials import credentials
from sandlot.backends.kubernetes.options import Connect
from sandlot.backends.kubernetes.reaper import Reaped, Reaper
from tests.cluster.faults.census import ON_NODE, census, wait_nothing
from tests.cluster.faults.clients import GRACE_S, LEASE_S, PATIENCE_S, Client, client, options
from tests.cluster.faults.conftest import Record
from tests.cluster.faults.ways import by

BURST = 6


async def test_clients_that_end_leave_nothing_and_harm_nobody(cluster: Cluster, space: str, image: str, record: Record) -> None:
    """Five clients of one namespace: one is killed in mid-burst, one is interrupted, two have clocks that are hours off.

    What the killed one left is deleted by the others. The interrupted one has deleted everything before it ends. Nobody is
    taken for dead because of a clock, and nobody's sandbox is touched by another: a command runs on all the time.
    """
    provider = sandlot.kubernetes(options=options(space), kubeconfig=cluster.kubeconfig)
    async with provider:
        with ExitStack() as stack:

            async def start(count: int, off_s: float = 0.0) -> Client:
                made = client(cluster, space, image, count, off_s=off_s)
                return await asyncio.to_thread(stack.enter_context, made)

            starting = start(BURST), start(2), start(1, -7200), start(1, 7200)
            dying, ending, late, early = await asyncio.gather(*starting)
            box = await provider.create(sandlot.Spec(image=image))
            job = await box.start("while :; do sleep 1; done")
            await asyncio.to_thread(dying.usable, 2)
            dying.process.kill()
            had = census(cluster, space, client=dying.id).pods
            assert had, "it had begun its burst"
            ending_of_dying = partial(wait_nothing, cluster, space, client=dying.id, names=had)
            cleaning = asyncio.create_task(asyncio.to_thread(ending_of_dying))

            lasting = [*await asyncio.to_thread(late.usable, 1), *await asyncio.to_thread(early.usable, 1), box.name]
            await asyncio.to_thread(ending.usable, 2)
            assert await asyncio.to_thread(ended, ending, signal.SIGINT) != 0
            found = census(cluster, space, client=ending.id)
            assert (found.pods, found.leases) == ((), ())

            left = await cleaning
            record("a client killed in mid-burst", left)
            assert not left, left
            await asyncio.to_thread(outlive_leases, cluster, space, sorted(lasting))
            assert sorted(census(cluster, space).pods) == sorted(lasting)
            for one in (late, early):
                await asyncio.to_thread(ended, one, signal.SIGINT)
        await job.signal(signal.SIGKILL)
        assert (await job.wait()).signal == signal.SIGKILL
    assert provider.closing is not None
    assert (provider.closing.created, provider.closing.gone, provider.closing.left) == (1, 1, ())
    assert not provider.statistics().failures


@pytest.mark.parametrize("connect", ["dial-out", "exec-bridge"])
@pytest.mark.full
async def test_what_a_killed_client_left_is_deleted_by_another(
    cluster: Cluster, space: str, image: str, record: Record, connect: Connect
) -> None:
    """By each way to a link, of the other one too: killed in mid-burst, nothing of it is left when its promise says so."""
    async with sandlot.kubernetes(options=by(connect, cluster, space), kubeconfig=cluster.kubeconfig) as provider:
        box = await provider.create(sandlot.Spec(image=image))
        with client(cluster, space, image, BURST, connect=connect) as dying:
            await asyncio.to_thread(dying.usable, 2)
            dying.process.kill()
            had = census(cluster, space, client=dying.id).pods
            assert had, "it had begun its burst"
            left = await asyncio.to_thread(wait_nothing, cluster, space, client=dying.id, names=had)
            record("a client killed in mid-burst", left)
            assert not left, left
        assert (await box.exec("echo mine")).stdout == "mine\n"


@pytest.mark.full
@pytest.mark.parametrize("connect", ["dial-in", "dial-out", "exec-bridge"])
async def test_daemons_of_a_client_that_nobody_survives_end_by_themselves(
    cluster: Cluster, space: str, image: str, record: Record, connect: Connect
) -> None:
    """When their grace is over no process is left on the node; the objects go when somebody sweeps."""
    with client(cluster, space, image, 3, connect=connect) as dying:
        await asyncio.to_thread(dying.usable, 3)
        dying.process.kill()
        left = await asyncio.to_thread(wait_nothing, cluster, space, kinds=ON_NODE, promise_s=GRACE_S + 30.0)
        record("daemons alone", left)
        assert not left, left
        assert len(census(cluster, space).pods) == 3
        async with await Api.open(credentials(cluster.kubeconfig, None)) as api:
            await api.request("GET", "/version")  # tells the time
            assert await Reaper(api, space).sweep() == Reaped(clients=(dying.id,))


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
