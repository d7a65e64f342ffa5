"""Pods that die, or that are cut off: no finished result is lost, and every loss has a name. By each way to a link."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

import sandlot
from cluster import Cluster
from sandlot.backends.kubernetes.options import Connect
from sandlot.errors import SandboxGone, TransportLost
from tests.cluster import pods
from tests.cluster.faults.clients import PATIENCE_S
from tests.cluster.faults.cutting import container_of
from tests.cluster.faults.ways import USUAL_AND_FULL, by, partition

COMMAND = "echo run >> /runs; echo begun; while [ ! -e /go ]; do sleep 0.1; done; echo done; echo done > /done"


@pytest.mark.parametrize("connect", ["dial-in", "dial-out", pytest.param("exec-bridge", marks=pytest.mark.full)])
async def test_daemon_that_is_killed_from_outside(cluster: Cluster, space: str, image: str, connect: Connect) -> None:
    """The call that waits says why its sandbox is gone; the one beside it does not notice."""
    async with sandlot.kubernetes(options=by(connect, cluster, space), kubeconfig=cluster.kubeconfig) as provider:
        killed, other = await asyncio.gather(*(provider.create(sandlot.Spec(image=image)) for _ in range(2)))
        waiting = asyncio.create_task(killed.exec("sleep 98765", timeout=None))
        os.kill(container_of(cluster, space, killed.name).pid, signal.SIGKILL)
        with pytest.raises(SandboxGone) as gone:
            await waiting
        assert gone.value.why == "killed"
        assert (await other.exec("echo alive")).stdout == "alive\n"
    assert provider.closing is not None
    assert (provider.closing.created, provider.closing.gone, provider.closing.left) == (2, 2, ())


@pytest.mark.parametrize("connect", [*USUAL_AND_FULL[:2]])
async def test_network_that_is_cut_for_less_and_for_more_than_the_grace(
    cluster: Cluster, space: str, image: str, connect: Connect
) -> None:
    """See `_cut_for_less_and_for_more`."""
    await _cut_for_less_and_for_more(cluster, space, image, connect)


@pytest.mark.full
async def test_bridges_that_are_cut_for_less_and_for_more_than_the_grace(
    breakable: Cluster, own_space: str, own_image: str
) -> None:
    """The same with links that go through the API server: what they pass on the node stands still."""
    await _cut_for_less_and_for_more(breakable, own_space, own_image, "exec-bridge")


async def _cut_for_less_and_for_more(cluster: Cluster, space: str, image: str, connect: Connect) -> None:
    """For less: the command goes on, ends meanwhile, and its result comes whole, of one run. For more: the call that waits
    gets a typed loss, and the daemon ends by itself, cut off as it is.
    """
    made = [by(connect, cluster, space, link_grace_s=grace_s) for grace_s in (2 * PATIENCE_S, 5.0)]
    providers = [sandlot.kubernetes(options=one, kubeconfig=cluster.kubeconfig) for one in made]
    async with providers[0] as patient, providers[1] as hasty:
        lasting, lost = await asyncio.gather(*(one.create(sandlot.Spec(image=image)) for one in (patient, hasty)))
        containers = [container_of(cluster, space, box.name) for box in (lasting, lost)]
        inside = Path(f"/proc/{containers[0].pid}/root")
        waiting = asyncio.create_task(lost.exec("sleep 98765", timeout=None))
        job = await lasting.start(COMMAND)
        finishing = asyncio.create_task(job.wait())
        await asyncio.to_thread(pods.until, (inside / "runs").exists, "the command's beginning")
        with partition(connect, cluster, containers):
            (inside / "go").touch()
            await asyncio.to_thread(pods.until, (inside / "done").exists, "the command's end")
            with pytest.raises((SandboxGone, TransportLost)):
                await waiting
            await asyncio.to_thread(pods.until, lambda: containers[1] not in cluster.containers(), "the daemon's own end")
        result = await finishing
        assert (result.stdout, result.exit_code) == ("begun\ndone\n", 0)
        assert (inside / "runs").read_text() == "run\n"
        assert (await lasting.exec("echo alive")).stdout == "alive\n"
    for one in providers:
        assert one.closing is not None
        assert (one.closing.created, one.closing.gone, one.closing.left) == (1, 1, ())
