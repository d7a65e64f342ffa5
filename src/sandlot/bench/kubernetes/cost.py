"""What one client process spends on each sandbox: CPU in each step of their lives, and memory while it holds them all.

The floor is the same process's cost of as many plain pods, of which it POSTs and DELETEs each and follows one watch.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from sandlot.backends.kubernetes.options import Connect
from sandlot.bench.kubernetes import clients
from sandlot.bench.kubernetes.access import session
from sandlot.bench.kubernetes.fleet import fleet
from sandlot.bench.kubernetes.plans import Kind, Outcome, Plan
from sandlot.bench.kubernetes.steps import COMMAND, IDLE, MADE
from sandlot.bench.table import Row, Table, machine
from sandlot.errors import DaemonFault

NAMESPACE: Final = "bench"
KEEPALIVE_S: Final = 10.0
"""Between two keepalives of a link: the unit in which idle ones are charged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """What is asked of the one client."""

    sandboxes: int
    connect: Connect
    idle_s: float
    fleet: Path


async def measure(client: Client, progress: Callable[[str], None]) -> Table:
    """The floor first, then sandboxes, each by a fresh process of the same program against the same stand-in."""
    async with stand_in() as kubeconfig:
        progress(f"{client.sandboxes} plain pods")
        floor = await outcome_of(plan_of(client, "plain", kubeconfig))
        progress(f"{client.sandboxes} sandboxes")
        async with session(4, kubeconfig) as opened, fleet(opened, NAMESPACE, client.fleet):
            ours = await outcome_of(plan_of(client, "steps", kubeconfig))
    return Table("client", machine(), tuple(rows(client, ours, floor)))


def rows(client: Client, ours: Outcome, floor: Outcome) -> list[Row]:
    """CPU each in milliseconds, memory in MiB. The floor has no steps of its own."""
    n, spent_s = client.sandboxes, dict(ours.harvest.cpu_s)
    idle_s = spent_s.pop(IDLE)
    life_s, floor_s = ours.cpu_s - idle_s, floor.cpu_s
    deleted_s = life_s - sum(spent_s.values())
    found = [_each("CPU each over its life", n, life_s, floor_s)]
    found += [_each(f"of it: {step}", n, step_s) for step, step_s in ((MADE, spent_s[MADE]), (COMMAND, spent_s[COMMAND]))]
    found.append(_each("of it: deleted, and the provider closed", n, deleted_s))
    if client.idle_s:
        found.append(_each(f"CPU each per {KEEPALIVE_S:g} s of doing nothing", n, idle_s * KEEPALIVE_S / client.idle_s))
    found.append(_mib("resident, all of it, at its highest", n, ours.peak_kib, floor.peak_kib))
    found.append(_mib("resident before the first", n, ours.base_kib, floor.base_kib))
    found.append(Row("attempts that failed", n, float(sum(ours.harvest.retried.values())), None, "count", 0.0))
    return found


def _each(case: str, n: int, seconds: float, floor_s: float | None = None) -> Row:
    ratio = None if floor_s is None else seconds / floor_s
    return Row(case, n, seconds / n * 1e3, None, "ms", None if floor_s is None else floor_s / n * 1e3, ratio)


def _mib(case: str, n: int, kib: int, floor_kib: int) -> Row:
    return Row(case, n, kib / 1024, None, "MiB", floor_kib / 1024, kib / floor_kib)


def plan_of(client: Client, kind: Kind, kubeconfig: Path) -> Plan:
    return Plan(
        kind=kind,
        mark=secrets.token_hex(4),
        count=client.sandboxes,
        delay_s=0.0,
        namespace=NAMESPACE,
        nodes="fake",
        image="busybox:1",
        connect=client.connect,
        advertise="127.0.0.1" if client.connect == "dial-out" else None,
        daemon_image="registry.invalid/sandlot/daemon:1",
        kubeconfig=str(kubeconfig),
        idle_s=client.idle_s,
    )


async def outcome_of(plan: Plan) -> Outcome:
    async def look() -> None:
        """Nobody looks on: what an observer asks would be in nobody's figures, but in the way."""

    (outcome,) = await clients.together([plan], look)
    if len(outcome.harvest.moments_s) != plan.count:
        raise DaemonFault(f"{len(outcome.harvest.moments_s)} of {plan.count} came: {outcome.harvest.failures}")
    return outcome


@asynccontextmanager
async def stand_in() -> AsyncIterator[Path]:
    """A running `standin`, and the kubeconfig for it."""
    with TemporaryDirectory(prefix="sandlot-bench-") as directory:
        words = (sys.executable, "-m", "sandlot.bench.kubernetes.standin", directory)
        process = await asyncio.create_subprocess_exec(*words, stdin=PIPE, stdout=PIPE)
        try:
            assert process.stdout is not None
            if await process.stdout.readline() != b"ready\n":
                raise DaemonFault(f"the stand-in for an API server ended with code {await process.wait()}")
            yield Path(directory) / "kubeconfig"
        finally:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
