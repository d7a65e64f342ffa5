"""The stand-in for an API server that `sandlot bench client` measures against."""

from __future__ import annotations

from pathlib import Path

from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.credentials import credentials
from sandlot.backends.kubernetes.listing import list_pods
from sandlot.bench.kubernetes.cost import NAMESPACE, Client, outcome_of, plan_of, stand_in

CLIENT = Client(sandboxes=20, connect="dial-in", idle_s=0.0, fleet=Path("unused"))


async def test_every_pod_that_is_posted_is_seen_ready_and_can_be_deleted() -> None:
    """By a client process as the benchmark starts it; nothing is left in the books."""
    async with stand_in() as kubeconfig:
        floor = await outcome_of(plan_of(CLIENT, "plain", kubeconfig))
        async with await Api.open(credentials(kubeconfig)) as api:
            left = await list_pods(api, NAMESPACE, "")
    assert len(floor.harvest.moments_s) == CLIENT.sandboxes
    assert floor.harvest.failures == {}
    assert left == []
    assert floor.cpu_s > 0
