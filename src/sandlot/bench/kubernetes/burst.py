"""Asking for many sandboxes at once, from several client processes, in turn with as many plain pods."""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp

from sandlot.backends.kubernetes.options import Connect
from sandlot.bench.kubernetes import clients, metrics
from sandlot.bench.kubernetes.access import session
from sandlot.bench.kubernetes.fleet import Fleet, fleet
from sandlot.bench.kubernetes.images import Pulled, published
from sandlot.bench.kubernetes.outside import Observer, namespace
from sandlot.bench.kubernetes.plans import Kind, Nodes, Outcome, Plan
from sandlot.errors import BadRequest

SKEW: Final = (7, 1, 1, 1)
"""Shares of the requests, a client each."""
APART_S: Final = 5.0
"""Between the beginnings of two clients of a skewed burst."""
LEFT_S: Final = 30.0
"""How long the observer looks for what is left; it stops at once when nothing is."""
TURNS: Final[tuple[Kind, ...]] = ("plain", "sandboxes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """What is asked for."""

    requests: int
    clients: int
    nodes: Nodes
    connect: Connect
    image: str
    advertise: str | None = None
    skew: bool = False
    rounds: int = 1
    """Pairs of a floor and a burst of ours."""
    fleet: Path | None = None
    """The program that plays daemons on fake nodes."""

    def counts(self) -> list[int]:
        """Requests of each client.

        Raises:
            BadRequest: fewer requests than clients, or a skew with another number of clients than it has shares.
        """
        if self.skew and self.clients != len(SKEW):
            raise BadRequest(f"--skew is about {len(SKEW)} clients, not {self.clients}")
        shares = SKEW if self.skew else (1,) * self.clients
        counts = [self.requests * share // sum(shares) for share in shares]
        counts[0] += self.requests - sum(counts)
        if min(counts) < 1:
            raise BadRequest(f"{self.requests} requests are not enough for {self.clients} clients")
        return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """One burst of one kind, and what the API server says of it."""

    kind: Kind
    outcomes: list[Outcome]
    writes: Counter[metrics.Kind]
    held: int
    """Pods that existed while every client held all of its own."""
    left: dict[str, list[str]]
    fleet_cpu_s: float = 0.0
    """CPU of what plays the daemons on fake nodes; no client's."""

    @property
    def asked(self) -> int:
        return sum(outcome.asked for outcome in self.outcomes)


async def run(burst: Burst, progress: Callable[[str], None]) -> list[Round]:
    """All rounds: floor, ours, floor, ours, ..., each in a namespace of its own."""
    found = []
    images = await published(burst.image, burst.nodes, progress)
    async with session(4) as opened:
        for number in range(burst.rounds):
            for kind in TURNS:
                progress(f"round {number + 1} of {burst.rounds}: {burst.requests} {kind}")
                found.append(await _round(opened, burst, images, kind))
    return found


@dataclass(slots=True)
class _Look:
    """What is seen while everything is held."""

    observer: Observer
    fleet: Fleet | None
    pods: int = 0
    fleet_cpu_s: float = 0.0

    async def __call__(self) -> None:
        self.pods = len(await self.observer.names("pods"))
        if self.fleet is not None:
            self.fleet_cpu_s = self.fleet.cpu_s()


async def _round(opened: aiohttp.ClientSession, burst: Burst, images: Pulled, kind: Kind) -> Round:
    name = f"sandlot-bench-{secrets.token_hex(4)}"
    async with namespace(opened, name):
        observer = Observer(opened, name)
        before = metrics.writes(await observer.metrics())
        async with _daemons(opened, burst, kind, name) as playing:
            look = _Look(observer, playing)
            outcomes = await clients.together(_plans(burst, images, kind, name), look)
        left = await observer.left(LEFT_S)
        after = metrics.writes(await observer.metrics())
    return Round(
        kind=kind,
        outcomes=outcomes,
        writes=metrics.between(before, after),
        held=look.pods,
        left=left,
        fleet_cpu_s=look.fleet_cpu_s,
    )


@asynccontextmanager
async def _daemons(opened: aiohttp.ClientSession, burst: Burst, kind: Kind, name: str) -> AsyncIterator[Fleet | None]:
    """Where nodes run nothing, somebody must be the daemons of our pods; nobody is those of plain ones."""
    if kind == "plain" or burst.nodes == "real" or burst.fleet is None:
        yield None
        return
    async with fleet(opened, name, burst.fleet) as playing:
        yield playing


def _advertised(burst: Burst) -> str | None:
    """What plays the daemons of fake nodes runs on this machine."""
    if burst.connect != "dial-out":
        return None
    return burst.advertise or ("127.0.0.1" if burst.nodes == "fake" else None)


def _plans(burst: Burst, images: Pulled, kind: Kind, name: str) -> list[Plan]:
    return [
        Plan(
            kind=kind,
            mark=secrets.token_hex(4),
            count=count,
            delay_s=place * APART_S if burst.skew else 0.0,
            namespace=name,
            nodes=burst.nodes,
            image=images.task,
            connect=burst.connect,
            advertise=_advertised(burst),
            daemon_image=images.daemon,
        )
        for place, count in enumerate(burst.counts())
    ]
