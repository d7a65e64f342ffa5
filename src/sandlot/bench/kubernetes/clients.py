"""Client processes as the benchmark that starts them sees them."""

from __future__ import annotations

import asyncio
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from sandlot.bench.kubernetes.plans import Outcome, Plan
from sandlot.errors import DaemonFault

HEAD_START_S: Final = 0.2
"""Between telling the clients when to begin and that moment: all of them have heard it by then."""
LINE_BYTES: Final = 64 * 2**20


async def together(plans: Sequence[Plan], while_held: Callable[[], Awaitable[None]]) -> list[Outcome]:
    """Run one process a plan, all beginning at the same moment, each plan's own delay aside.

    None deletes before all have what they asked for; `while_held` is called then.

    Raises:
        DaemonFault: a client ended before its time; what it had said is on standard error.
    """
    processes = await asyncio.gather(*(_start(plan) for plan in plans))
    try:
        await asyncio.gather(*(_hear(process, b"open") for process in processes))
        await _tell(processes, repr(time.monotonic() + HEAD_START_S).encode())
        await asyncio.gather(*(_hear(process, b"holds") for process in processes))
        await while_held()
        await _tell(processes, b"release")
        told = await asyncio.gather(*(_line(process) for process in processes))
        await asyncio.gather(*(process.wait() for process in processes))
    finally:
        await asyncio.gather(*(_end(process) for process in processes))
    return [msgspec.json.decode(line, type=Outcome) for line in told]


async def _start(plan: Plan) -> Process:
    module = "sandlot.bench.kubernetes.client"
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", module, stdin=PIPE, stdout=PIPE, limit=LINE_BYTES)
    await _tell([process], msgspec.json.encode(plan))
    return process


async def _tell(processes: Sequence[Process], line: bytes) -> None:
    for process in processes:
        if process.stdin is not None:
            process.stdin.write(line + b"\n")
            await process.stdin.drain()


async def _line(process: Process) -> bytes:
    line = b"" if process.stdout is None else await process.stdout.readline()
    if not line:
        raise DaemonFault(f"a client process of the benchmark ended with code {await process.wait()}")
    return line.rstrip(b"\n")


async def _hear(process: Process, word: bytes) -> None:
    if (line := await _line(process)) != word:
        raise DaemonFault(f"a client process of the benchmark said {line[:80]!r} instead of {word!r}")


async def _end(process: Process) -> None:
    """Whoever is still there is asked to stop, cleans up, and is waited for."""
    if process.returncode is None:
        process.terminate()
        await process.wait()
