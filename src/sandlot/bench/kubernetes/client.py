"""One client process of a benchmark: `python -m sandlot.bench.kubernetes.client`, told what to do on standard input.

parent                      client
plan                   →
                       ←    open        imports done, connected
moment of beginning    →
                       ←    holds       all has come that will, and is held
release                →
                       ←    outcome     all was deleted
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from typing import Final

import msgspec

from sandlot.bench.kubernetes.ours import sandboxes
from sandlot.bench.kubernetes.plain import plain_pods
from sandlot.bench.kubernetes.plans import Kind, Outcome, Plan, Work
from sandlot.bench.kubernetes.steps import steps
from sandlot.bench.measuring import held
from sandlot.collecting import collect_seldom

WORKS: Final[dict[Kind, Work]] = {"plain": plain_pods, "sandboxes": sandboxes, "steps": steps}


async def serve() -> None:
    """Follow one plan from the first line to the last. SIGTERM ends it in order: what was made is deleted."""
    if (task := asyncio.current_task()) is not None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    plan = msgspec.json.decode(await _heard(), type=Plan)
    base_kib, cpu_s = held(os.getpid()).resident_kib, time.process_time()
    async with WORKS[plan.kind](plan) as make:
        _say(b"open")
        began_s = float(await _heard()) + plan.delay_s
        await asyncio.sleep(began_s - time.monotonic())
        harvest = await make()
        _say(b"holds")
        await _heard()
    outcome = Outcome(
        asked=plan.count,
        began_s=began_s,
        harvest=harvest,
        cpu_s=time.process_time() - cpu_s,
        peak_kib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        base_kib=base_kib,
    )
    _say(msgspec.json.encode(outcome))


async def _heard() -> str:
    line: str = await asyncio.to_thread(sys.stdin.readline)
    if not line:
        raise SystemExit("the benchmark that started this client has gone")
    return line


def _say(line: bytes) -> None:
    sys.stdout.buffer.write(line + b"\n")
    sys.stdout.buffer.flush()


def main() -> None:
    """Every sandbox is a socket or two, so the process takes as many descriptors as it may have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    collect_seldom()
    asyncio.run(serve())


if __name__ == "__main__":
    main()
