"""A command that does nothing: what Sandlot adds to the work of an agent's tool call."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Final

import sandlot
from sandlot.bench.measuring import Held, Paired, cpu_s, floor_block, held, left_row, paired
from sandlot.bench.table import Row, Table, machine
from sandlot.errors import DaemonFault
from sandlot.sandbox import Sandbox
from sandlot.spec import Spec
from sandlot.testing.observer import daemons, footprint

REST_S: Final = 0.05  # longer than a grace period of RCU, shorter than anybody's patience


async def measure(*, blocks: int, size: int, sandboxes: int, soak: int) -> Table:
    """`blocks` pairs of `size` commands one at a time; `soak` commands, what is held before and after; `sandboxes` at once."""
    async with sandlot.local() as provider:
        box = await provider.create(Spec(image="host"))
        rows = await _one_at_a_time(box, blocks, size)
        rows += await _soak(box, soak)
        boxes = [box, *await asyncio.gather(*(provider.create(Spec(image="host")) for _ in range(sandboxes - 1)))]
        rows.append(await _many_at_once(boxes))
        mark = footprint(os.getpid())
    return Table("noop", machine(), (*rows, left_row(mark)))


async def _checked(box: Sandbox, number: int) -> None:
    """One command that no other equals, whose code and output say whether it ran."""
    result = await box.exec(f"echo {number}; exit {number % 200}")
    if result.exit_code != number % 200 or result.stdout_bytes != b"%d\n" % number:
        raise DaemonFault(f"command {number} answered code {result.exit_code} and {result.stdout_bytes[:80]!r}")


def _unique(number: int) -> str:
    """A command that does nothing, that no other equals, and whose code says that it was this one."""
    return f"exit {number % 200} # {number}"


async def _one_at_a_time(box: Sandbox, blocks: int, size: int) -> list[Row]:
    async def script(number: int) -> float:
        begin = time.perf_counter()
        result = await box.exec(_unique(number))
        took = time.perf_counter() - begin
        if result.exit_code != number % 200:
            raise DaemonFault(f"exit {number % 200} answered {result.exit_code}")
        return took

    async def vector(number: int) -> float:
        begin = time.perf_counter()
        result = await box.exec(["sh", "-c", _unique(number)])
        took = time.perf_counter() - begin
        if result.exit_code != number % 200:
            raise DaemonFault(f"exit {number % 200} answered {result.exit_code}")
        return took

    shell = await box.shell()

    async def in_shell(number: int) -> float:
        begin = time.perf_counter()
        result = await shell.run(f"({_unique(number)}\n)")
        took = time.perf_counter() - begin
        if result.exit_code != number % 200:
            raise DaemonFault(f"exit {number % 200} answered {result.exit_code}")
        return took

    for number in range(size):
        await script(number)
    pids = [os.getpid(), *daemons(os.getpid())]
    scripts = await paired(blocks, size, script)
    before = cpu_s(pids)
    for number in range(blocks * size):
        await script(number)
    spent = (cpu_s(pids) - before) / (blocks * size)
    vectors = await paired(blocks, size, vector)
    shells = await paired(blocks, size, in_shell)
    await shell.close()
    rested = [await _after_rests("script", script), await _after_rests("argument vector", vector)]
    return [
        scripts.row("script, one at a time"),
        scripts.tail_row("script, 99th percentile"),
        vectors.row("argument vector, one at a time"),
        shells.row("persistent shell, one at a time"),
        *rested,
        Row("CPU of client, daemon and command, each script", blocks * size, spent * 1e3, None, "ms"),
    ]


async def _after_rests(what: str, one: Callable[[int], Awaitable[float]]) -> Row:
    """As an agent calls: each command, and each floor, after a rest in which caches cool and the kernel settles."""
    found = Paired()
    for block in range(20):
        floors, ours = [], []
        for number in range(3):
            await asyncio.sleep(REST_S)
            floors += floor_block(1)
            await asyncio.sleep(REST_S)
            ours.append(await one(3 * block + number))
        found.add(ours, floors)
    return found.row(f"{what}, each after {REST_S * 1e3:g} ms of rest")


async def _soak(box: Sandbox, count: int) -> list[Row]:
    """What client and daemons hold before and after many checked commands."""
    pids = [os.getpid(), *daemons(os.getpid())]
    for number in range(min(500, count)):
        await _checked(box, number)
    before = [held(pid) for pid in pids]
    for number in range(count):
        await _checked(box, number)
    after = [held(pid) for pid in pids]

    def row(what: str, unit: str, grown: list[int], now: int) -> Row:
        return Row(f"{what} grown over {count} commands, worst process", count, float(max(grown)), None, unit, float(now))

    def change(name: str) -> list[int]:
        return [getattr(late, name) - getattr(early, name) for early, late in zip(before, after, strict=True)]

    largest = max(after, key=lambda one: one.resident_kib, default=Held(0, 0, 0))
    return [
        row("descriptors", "count", change("descriptors"), max(one.descriptors for one in after)),
        row("threads", "count", change("threads"), max(one.threads for one in after)),
        row("resident memory", "KiB", change("resident_kib"), largest.resident_kib),
    ]


async def _many_at_once(boxes: list[Sandbox]) -> Row:
    """Commands a second over all sandboxes, two blocks of floor around each block of ours."""
    rates, floors = [], []
    each = 25
    for _ in range(5):
        floors.append(1 / statistics.mean(floor_block(100)))
        begin = time.perf_counter()
        await asyncio.gather(*(_several(box, place * each, each) for place, box in enumerate(boxes)))
        rates.append(len(boxes) * each / (time.perf_counter() - begin))
    ratios = [rate / floor for rate, floor in zip(rates, floors, strict=True)]
    case = f"{len(boxes)} sandboxes at once, checked commands"
    worst = min(rates)
    return Row(
        case,
        5 * each * len(boxes),
        statistics.median(rates),
        worst,
        "1/s",
        statistics.median(floors),
        statistics.median(ratios),
    )


async def _several(box: Sandbox, first: int, count: int) -> None:
    for number in range(first, first + count):
        await _checked(box, number)
