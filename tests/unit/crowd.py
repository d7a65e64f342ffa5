"""Several clients on one cluster, simulated on virtual time: each has a gate of its own and knows nothing of the others.

The cluster is a chain of queues, each first come, first served: an API server of several workers, a scheduler, nodes that
start several sandboxes at a time. Service times vary by a fixed seed.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

from sandlot.pacing import Gate, Outcome, Pace


@dataclass(frozen=True)
class Cluster:
    """Rates are creates a second, times seconds."""

    posts_per_s: float = 400.0
    posts_at_once: int = 16
    schedules_per_s: float = 140.0
    starts_at_once: int = 10_000
    start_s: float = 0.3

    @property
    def rate_per_s(self) -> float:
        """What the whole chain can do."""
        return min(self.posts_per_s, self.schedules_per_s, self.starts_at_once / self.start_s)


@dataclass
class Client:
    """One client and what it has to make."""

    requests: int
    begins_s: float
    pace: Pace
    usable_s: list[float] = field(default_factory=list)
    """When each became usable."""
    gate: Gate = field(init=False)

    def took_s(self, share: float = 1.0) -> float:
        """From its beginning until this share of its requests was usable."""
        return self.usable_s[max(0, round(share * self.requests) - 1)] - self.begins_s


@dataclass
class _Create:
    """One create on its way through the cluster."""

    client: Client
    ticket: int
    posted_s: float = 0.0
    scheduled_s: float = 0.0


class _Station:
    """Workers behind one queue."""

    def __init__(self, workers: int, mean_s: float) -> None:
        self.idle = workers
        self.mean_s = mean_s
        self.queue: deque[_Create] = deque()


class _Run:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.chance = random.Random(seed)
        self.post = _Station(cluster.posts_at_once, cluster.posts_at_once / cluster.posts_per_s)
        self.schedule = _Station(1, 1 / cluster.schedules_per_s)
        self.start = _Station(cluster.starts_at_once, cluster.start_s)
        self.events: list[tuple[float, int, _Station | None, _Create]] = []
        self.order = count()

    def at(self, when_s: float, station: _Station | None, create: _Create) -> None:
        heapq.heappush(self.events, (when_s, next(self.order), station, create))

    def arrive(self, now: float, station: _Station, create: _Create) -> None:
        station.queue.append(create)
        self.serve(now, station)

    def serve(self, now: float, station: _Station) -> None:
        while station.idle and station.queue:
            station.idle -= 1
            self.at(now + station.mean_s * self.chance.uniform(0.5, 1.5), station, station.queue.popleft())

    def let_in(self, now: float, client: Client) -> None:
        for ticket in client.gate.poll(now).start:
            self.arrive(now, self.post, _Create(client, ticket))

    def step(self) -> None:
        """The next thing that happens: a client begins, or a station has done its part."""
        now, _, station, create = heapq.heappop(self.events)
        if station is not None:
            station.idle += 1
            self.serve(now, station)
        if station is self.post:
            create.posted_s = now
            self.arrive(now, self.schedule, create)
        elif station is self.schedule:
            create.scheduled_s = now
            self.arrive(now, self.start, create)
        else:
            if station is self.start:
                create.client.usable_s.append(now)
                queued_s = create.scheduled_s - create.posted_s
                create.client.gate.done(create.ticket, now, Outcome("served", queued_s=queued_s))
            self.let_in(now, create.client)


def run(cluster: Cluster, clients: Sequence[Client], *, seed: int = 1) -> None:
    """Until every request is usable."""
    simulation = _Run(cluster, seed)
    for client in clients:
        client.gate = Gate(client.pace, client.begins_s)
        for ticket in range(client.requests):
            client.gate.ask(ticket, "image")
        simulation.at(client.begins_s, None, _Create(client, -1))
    while simulation.events:
        simulation.step()


def fair_s(cluster: Cluster, clients: Sequence[Client]) -> list[float]:
    """When each client would have finished, from its own beginning, had the rate been shared evenly among those at work."""
    left = [float(client.requests) for client in clients]
    ended: list[float] = [0.0] * len(clients)
    now = min(client.begins_s for client in clients)
    while any(left):
        at_work = [i for i, client in enumerate(clients) if left[i] and client.begins_s <= now]
        begins = [client.begins_s for i, client in enumerate(clients) if left[i] and client.begins_s > now]
        rate = cluster.rate_per_s / len(at_work) if at_work else 0.0
        until = min([now + left[i] / rate for i in at_work] + begins)
        for i in at_work:
            left[i] -= (until - now) * rate
            if left[i] < 1e-6:
                left[i], ended[i] = 0.0, until
        now = until
    return [end - client.begins_s for end, client in zip(ended, clients, strict=True)]
