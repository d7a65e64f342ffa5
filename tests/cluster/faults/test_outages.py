"""Parts of the cluster itself stop in the middle of a burst: what runs goes on, what was asked for comes or fails by name.

These clusters are the session's own: nobody else may be using them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial

import pytest

import sandlot
from cluster import Cluster
from sandlot.backends.kubernetes.options import Connect
from sandlot.errors import Infrastructure, NotReady, SandboxGone, TransportLost
from sandlot.limits import LINK_DEAD_MS
from tests.cluster.faults.census import census
from tests.cluster.faults.clients import PATIENCE_S, options
from tests.cluster.faults.cutting import container_of, cut_off
from tests.cluster.faults.ways import by
from tests.patience import Patience

BURST = 3
STALL_S = 10.0
COMMAND = "while [ ! -e /tmp/go ]; do sleep 0.1; done; echo done"


async def test_outages_in_mid_burst_lose_no_result_and_leave_nothing(
    breakable: Cluster, own_space: str, own_image: str
) -> None:
    """The API server is stopped and started, its store stalls, the node's agent is killed: one after the other.

    Two clients; a sandbox of each runs a command all the time, for longer than the leases that nobody could renew.
    """
    made = options(own_space, link_grace_s=2 * PATIENCE_S)
    providers = [sandlot.kubernetes(options=made, kubeconfig=breakable.kubeconfig) for _ in range(2)]
    async with providers[0] as provider, providers[1] as other:
        boxes = await asyncio.gather(*(one.create(sandlot.Spec(image=own_image)) for one in (provider, other)))
        jobs = [await box.start(COMMAND) for box in boxes]
        failed = 0
        for part, outage in (("apiserver", _stopped), ("etcd", _stalled), ("kubelet", _killed)):
            failed += await _burst(provider, own_image, partial(asyncio.to_thread, outage, breakable, part))
        for box in boxes:
            await box.write("/tmp/go", b"")
        assert [(await job.wait()).stdout for job in jobs] == ["done\n", "done\n"]
        after = await provider.create(sandlot.Spec(image=own_image))
        assert (await after.exec("echo usable")).stdout == "usable\n"
        assert failed <= sum(provider.statistics().failures.values())
    for one in providers:
        assert one.closing is not None
        assert one.closing.left == ()
        assert one.closing.created == one.closing.gone
    found = census(breakable, own_space)
    assert (found.pods, found.leases) == ((), ())


@pytest.mark.full
async def test_node_that_is_gone_takes_its_sandboxes_by_name(breakable: Cluster, own_space: str, own_image: str) -> None:
    """Its agent is dead and its object deleted: the cluster gives its pods up, and the client hears of it."""
    async with sandlot.kubernetes(options=options(own_space), kubeconfig=breakable.kubeconfig) as provider:
        box = await provider.create(sandlot.Spec(image=own_image))
        waiting = asyncio.create_task(box.exec("sleep 98765", timeout=None))
        breakable.kill("kubelet")
        try:
            with breakable.api() as api:
                api.delete(f"/api/v1/nodes/{breakable.real_node}")
            with pytest.raises(SandboxGone) as gone:
                await waiting
            assert gone.value.why == "node_lost"
        finally:
            await asyncio.to_thread(breakable.start, "kubelet")


@pytest.mark.full
@pytest.mark.parametrize("connect", ["dial-in", "dial-out", "exec-bridge"])
async def test_node_that_falls_silent_is_a_loss_by_name(
    breakable: Cluster, own_space: str, own_image: str, connect: Connect
) -> None:
    """Nothing of it answers, nothing is closed, and its object stays: the cluster takes it for well. A command that waits is
    told of the loss when the link has been dead for its grace; what is placed there meanwhile is not ready in its time.
    """
    spec, grace_s = sandlot.Spec(image=own_image), 5.0
    made = by(connect, breakable, own_space, link_grace_s=grace_s)
    settings = sandlot.Settings(attempts=1)
    async with sandlot.kubernetes(settings, options=made, kubeconfig=breakable.kubeconfig) as provider:
        box = await provider.create(spec)
        waiting = asyncio.create_task(box.exec("sleep 98765", timeout=None))
        with cut_off(container_of(breakable, own_space, box.name)), breakable.paused("kubelet"), breakable.paused("containerd"):
            with pytest.raises(NotReady):
                await provider.create(spec, create_timeout_s=5.0)
            patience = Patience(LINK_DEAD_MS / 1000 + grace_s + 30.0)
            while not waiting.done():
                assert not patience.over(), "nobody was told"
                await asyncio.wait([waiting], timeout=1.0)
            assert isinstance(waiting.exception(), TransportLost | SandboxGone)
            await box.aclose()
            assert census(breakable, own_space).pods == ()
    assert provider.closing is not None
    assert (provider.closing.created, provider.closing.gone, provider.closing.left) == (2, 2, ())


async def _burst(provider: sandlot.Provider, image: str, outage: Callable[[], Awaitable[None]]) -> int:
    """A few creates, with an outage once the first of them has been answered; how many failed for its sake."""
    creating = [asyncio.create_task(provider.create(sandlot.Spec(image=image))) for _ in range(BURST)]
    await asyncio.wait(creating, return_when=asyncio.FIRST_COMPLETED)
    creating += [asyncio.create_task(provider.create(sandlot.Spec(image=image))) for _ in range(BURST)]
    await outage()
    ended = await asyncio.gather(*creating, return_exceptions=True)
    assert all(isinstance(one, sandlot.Sandbox | Infrastructure) for one in ended), ended
    usable = [one for one in ended if isinstance(one, sandlot.Sandbox)]
    assert usable, "the first one was answered before the outage"
    for box in usable:
        assert (await box.exec("echo usable")).stdout == "usable\n"
    await asyncio.gather(*(box.aclose() for box in usable))
    return len(ended) - len(usable)


def _stopped(cluster: Cluster, part: str) -> None:
    cluster.stop(part)
    cluster.start(part)


def _killed(cluster: Cluster, part: str) -> None:
    cluster.kill(part)
    cluster.start(part)


def _stalled(cluster: Cluster, part: str) -> None:
    """Its connections stay open, and nothing answers."""
    with cluster.paused(part):
        time.sleep(STALL_S)
