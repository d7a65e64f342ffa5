"""Sandboxes through the library as anybody would use it, each proven by a command that says where it runs."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import sandlot
from sandlot.bench.kubernetes import pods
from sandlot.bench.kubernetes.plans import Harvest, Make, Plan
from sandlot.errors import SandlotError
from sandlot.provider import Provider
from sandlot.sandbox import Sandbox
from sandlot.spec import Spec

WHERE: Final = 'read -r name </proc/sys/kernel/hostname; echo "$name"; exit {code}'
"""Says the sandbox's own name, with builtins of any shell; the code says that it was this command that was answered."""


@asynccontextmanager
async def sandboxes(plan: Plan) -> AsyncIterator[Make]:
    """See `plans.Work`."""
    async with sandlot.kubernetes(options=pods.options(plan), kubeconfig=plan.kubeconfig) as provider:
        clients = _Client(plan, provider)
        yield clients.make


class _Client:
    def __init__(self, plan: Plan, provider: Provider) -> None:
        self._plan = plan
        self._provider = provider
        self._spec = pods.spec(plan.image, plan.nodes)
        self._held: list[Sandbox] = []
        self._moments_s: list[float] = []
        self._failures: Counter[str] = Counter()

    async def make(self) -> Harvest:
        names = [f"{self._plan.mark}-{number}" for number in range(self._plan.count)]
        await asyncio.gather(*(self._one(name, number % 199 + 1) for number, name in enumerate(names)))
        return Harvest(
            moments_s=sorted(self._moments_s),
            failures=dict(self._failures),
            retried=dict(self._provider.statistics().failures),
        )

    async def _one(self, name: str, code: int) -> None:
        wanted: Spec = pods.named(self._spec, name)
        try:
            box = await self._provider.create(wanted, name=name)
            self._held.append(box)
            result = await box.exec(WHERE.format(code=code))
        except SandlotError as error:
            self._failures[error.kind] += 1
            return
        if (result.code, result.stdout) != (code, f"{name}\n"):
            self._failures["answered by another"] += 1
            return
        self._moments_s.append(time.monotonic())
