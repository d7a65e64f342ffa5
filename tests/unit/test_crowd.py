"""Clients that share nothing but a cluster, on virtual time: the cluster stays busy, and nobody waits for the greedy.

Rates are those of the test cluster: some 140 sandboxes a second on fake nodes, 6.5 on the one real node.
"""

from __future__ import annotations

import pytest

from sandlot.adaptive import QueueTarget
from sandlot.errors import BadRequest
from sandlot.pacing import Pace, cluster_pace
from tests.unit.crowd import Client, Cluster, fair_s, run

FAKE_NODES = Cluster()
REAL_NODE = Cluster(starts_at_once=4, start_s=4 / 6.5)
STOCK_SCHEDULER = Cluster(schedules_per_s=50, start_s=2.0)
LARGE = Cluster(posts_per_s=3000, posts_at_once=64, schedules_per_s=1000, start_s=1.0)


def crowd(sizes: list[int], begins_s: list[float]) -> list[Client]:
    return [Client(n, begin_s, cluster_pace()) for n, begin_s in zip(sizes, begins_s, strict=True)]


def rate(clients: list[Client]) -> float:
    began_s = min(client.begins_s for client in clients)
    return sum(client.requests for client in clients) / (max(client.usable_s[-1] for client in clients) - began_s)


@pytest.mark.parametrize("begins_s", [[0.0, 5, 10, 15], [0.0, 0, 0, 0], [0.0, 20, 20.5, 21], [15.0, 0, 5, 10]])
@pytest.mark.parametrize("cluster", [FAKE_NODES, STOCK_SCHEDULER], ids=["fake nodes", "stock scheduler"])
def test_no_small_client_waits_much_longer_than_at_its_fair_share(cluster: Cluster, begins_s: list[float]) -> None:
    """Clients of 7,000 and three times 1,000, starting apart: at most 1.5 times, and the cluster is never idle."""
    clients = crowd([7000, 1000, 1000, 1000], begins_s)
    run(cluster, clients)
    ratios = [client.took_s() / fair for client, fair in zip(clients, fair_s(cluster, clients), strict=True)]
    assert max(ratios) <= 1.5
    assert rate(clients) >= 0.9 * cluster.rate_per_s


def test_fair_where_nodes_are_the_bottleneck_too() -> None:
    """They tell of no queue: it shows in how long starts take."""
    clients = crowd([700, 100, 100, 100], [0, 5, 10, 15])
    run(REAL_NODE, clients)
    ratios = [client.took_s() / fair for client, fair in zip(clients, fair_s(REAL_NODE, clients), strict=True)]
    assert max(ratios) <= 1.5
    assert rate(clients) >= 0.9 * REAL_NODE.rate_per_s


@pytest.mark.parametrize(
    ("cluster", "sizes"),
    [
        (FAKE_NODES, [10_000]),
        (FAKE_NODES, [2500] * 4),
        (FAKE_NODES, [250] * 4),
        (FAKE_NODES, [500] * 20),
        (REAL_NODE, [100]),
        (REAL_NODE, [25] * 4),
        (STOCK_SCHEDULER, [5000]),
    ],
)
def test_a_burst_keeps_the_cluster_busy(cluster: Cluster, sizes: list[int]) -> None:
    """From one client or from many, at least nine tenths of what the cluster can do."""
    clients = crowd(sizes, [0.0] * len(sizes))
    run(cluster, clients)
    assert rate(clients) >= 0.9 * cluster.rate_per_s


def test_finds_the_level_of_a_large_cluster() -> None:
    """Seven times as fast, and slower to start each: most of it is used within a burst of ten seconds."""
    clients = crowd([10_000], [0.0])
    run(LARGE, clients)
    assert rate(clients) >= 0.6 * LARGE.rate_per_s
    assert clients[0].gate.statistics().limit > 4 * QueueTarget().start


def test_a_cluster_that_became_slower_does_not_fill_up() -> None:
    """Few more than the target wait in its queues, however many are to be made."""
    (client,) = crowd([2000], [0.0])
    run(Cluster(schedules_per_s=20), [client])
    assert client.gate.statistics().limit <= 2 * QueueTarget().waiting
    assert rate([client]) >= 18


@pytest.mark.parametrize(
    "bad", [{"waiting": 0}, {"start": 4}, {"least": 0}, {"tolerance": 0.5}, {"haste": 0.0}, {"cut": 1.0}, {"pause_s": -1.0}]
)
def test_refuses_rules_that_cannot_work(bad: dict[str, float]) -> None:
    """When they are made."""
    with pytest.raises(BadRequest):
        Pace(adaptive=QueueTarget(**bad))  # type: ignore[arg-type]
