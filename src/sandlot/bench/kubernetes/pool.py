"""Rollouts through a pool of pods: how soon each has a clean sandbox, and how many pods that takes."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import sandlot
from sandlot.backends.kubernetes.options import ClusterOptions, Connect
from sandlot.bench.kubernetes import pods
from sandlot.bench.kubernetes.access import session
from sandlot.bench.kubernetes.burst import LEFT_S
from sandlot.bench.kubernetes.images import published
from sandlot.bench.kubernetes.outside import Observer, namespace
from sandlot.bench.measuring import percentile
from sandlot.bench.table import Row, Table, machine
from sandlot.errors import DaemonFault
from sandlot.pool import Pool, PoolLimits, PoolStatistics
from sandlot.provider import Provider
from sandlot.sandbox import Sandbox
from sandlot.spec import Spec
from sandlot.strategies import Strategy, fixed, look_ahead

EACH: Final = 4
"""Rollouts of one task, where every task has an environment of its own."""
IDLE_S: Final = 0.005
"""Between two looks whether all pods wait."""
WORK: Final = "test ! -e /tmp/mark && echo {number} >/tmp/mark && exit {code}; exit 255"
"""What an episode does: it fails where one before it has left something."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollouts:
    """What is asked for."""

    count: int
    concurrency: int
    image: str
    connect: Connect = "dial-in"


@dataclass(frozen=True, slots=True)
class _Case:
    """What came of one case."""

    name: str
    waits_s: list[float]
    statistics: PoolStatistics

    def rows(self) -> list[Row]:
        return [
            self._waits("lease", self.waits_s),
            self._count("pods made", self.statistics.created),
            *(self._count(f"given up: {why}", n) for why, n in sorted(self.statistics.discarded.items())),
            self._count("leases of a pod that had served before", self.statistics.reused),
        ]

    def _waits(self, what: str, waits_s: list[float]) -> Row:
        p50, p99 = percentile(waits_s, 50) * 1e3, percentile(waits_s, 99) * 1e3
        return Row(f"{self.name}: {what}", len(waits_s), p50, p99, "ms")

    def _count(self, what: str, count: int) -> Row:
        return Row(f"{self.name}: {what}", len(self.waits_s), float(count), None, "count")


async def measure(rollouts: Rollouts, progress: Callable[[str], None]) -> Table:
    """Leases one at a time of pods that wait for them; then rollouts without a pause, of one image for all, and of an
    environment of its own for every `EACH` of them, which no other can use: there a reset is on the way of who comes next.
    """
    images = await published(rollouts.image, "real", progress)
    one = pods.spec(images.task, "real")
    cases = {
        "one image": [one] * rollouts.count,
        f"one environment for {EACH}": [replace(one, env={"TASK": str(n // EACH)}) for n in range(rollouts.count)],
    }
    found: list[_Case] = []
    kept = fixed({one: rollouts.concurrency})
    name = f"sandlot-bench-{secrets.token_hex(4)}"
    async with session(4) as opened, namespace(opened, name):
        options = ClusterOptions(namespace=name, connect=rollouts.connect, daemon_image=images.daemon)
        async with sandlot.kubernetes(options=options, notice=progress) as provider:
            progress(f"leases of {rollouts.concurrency} pods that wait")
            found.append(await _one_at_a_time(provider, one, kept, rollouts))
            for case, specs in cases.items():
                progress(f"{rollouts.count} rollouts, {case}")
                found.append(await _run(case, provider, specs, rollouts.concurrency))
        left = await Observer(opened, name).left(LEFT_S)
    total = float(sum(len(names) for names in left.values()))
    rows = [row for case in found for row in case.rows()]
    return Table("pool", machine(), (*rows, Row("left after exit, pods and leases", 2, total, None, "count", 0.0)))


async def _one_at_a_time(provider: Provider, spec: Spec, kept: Strategy, rollouts: Rollouts) -> _Case:
    waits_s: list[float] = []
    async with Pool(provider, strategy=kept, limits=PoolLimits(sandboxes=rollouts.concurrency)) as pool:
        for number in range(rollouts.count):
            await _until_idle(pool, rollouts.concurrency)
            asked = time.perf_counter()
            async with pool.lease(spec) as box:
                waits_s.append(time.perf_counter() - asked)
                await _episode(box, number)
        return _Case("waiting pods, one at a time", waits_s, pool.statistics())


async def _until_idle(pool: Pool, count: int) -> None:
    while True:
        if pool.statistics().idle >= count:
            return
        await asyncio.sleep(IDLE_S)


async def _run(case: str, provider: Provider, specs: Sequence[Spec], concurrency: int) -> _Case:
    waits_s: list[float] = []
    turns = iter(enumerate(specs))

    async def worker(pool: Pool) -> None:
        for number, spec in turns:
            asked = time.perf_counter()
            async with pool.lease(spec) as box:
                waits_s.append(time.perf_counter() - asked)
                await _episode(box, number)

    limits = PoolLimits(sandboxes=concurrency)
    async with Pool(provider, strategy=look_ahead(concurrency=concurrency), limits=limits) as pool:
        pool.expect(specs)
        await asyncio.gather(*(worker(pool) for _ in range(concurrency)))
        return _Case(case, waits_s, pool.statistics())


async def _episode(box: Sandbox, number: int) -> None:
    result = await box.exec(WORK.format(number=number, code=number % 200))
    if result.exit_code != number % 200:
        raise DaemonFault(f"rollout {number} found what another had left in {box.name} (code {result.exit_code})")
