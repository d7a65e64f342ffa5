"""One client's sandboxes in step: all are made, all run a command, all wait, all go. Each step's CPU is its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import sandlot
from sandlot.bench.kubernetes import pods
from sandlot.bench.kubernetes.ours import WHERE
from sandlot.bench.kubernetes.plans import Harvest, Make, Plan
from sandlot.errors import DaemonFault
from sandlot.provider import Provider
from sandlot.sandbox import Sandbox

MADE: Final = "made and usable"
COMMAND: Final = "a further command"
IDLE: Final = "idle"


@asynccontextmanager
async def steps(plan: Plan) -> AsyncIterator[Make]:
    """See `plans.Work`."""
    async with sandlot.kubernetes(options=pods.options(plan), kubeconfig=plan.kubeconfig) as provider:
        yield _Steps(plan, provider).take


class _Steps:
    def __init__(self, plan: Plan, provider: Provider) -> None:
        self._plan = plan
        self._provider = provider
        self._cpu_s: dict[str, float] = {}
        self._used_s = time.process_time()

    async def take(self) -> Harvest:
        """Raises whatever goes wrong: a cost of which a part is missing is none."""
        plan, wanted = self._plan, pods.spec(self._plan.image, self._plan.nodes)
        names = [f"{plan.mark}-{number}" for number in range(plan.count)]
        self._charge("open")
        boxes = await asyncio.gather(*(self._provider.create(pods.named(wanted, name), name=name) for name in names))
        self._charge(MADE)
        await asyncio.gather(*(_ask(box, number % 199 + 1) for number, box in enumerate(boxes)))
        self._charge(COMMAND)
        await asyncio.sleep(plan.idle_s)
        self._charge(IDLE)
        return Harvest(
            moments_s=[time.monotonic()] * len(boxes),
            failures={},
            retried=dict(self._provider.statistics().failures),
            cpu_s=self._cpu_s,
        )

    def _charge(self, step: str) -> None:
        before_s, self._used_s = self._used_s, time.process_time()
        self._cpu_s[step] = self._used_s - before_s


async def _ask(box: Sandbox, code: int) -> None:
    result = await box.exec(WHERE.format(code=code))
    if (result.code, result.stdout) != (code, f"{box.name}\n"):
        raise DaemonFault(f"{box.name} answered {result.code} and {result.stdout[:80]!r}")
