"""Making sandboxes: from the wish to the answer of the first command, and how many a second come and go."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import sandlot
from sandlot.bench.measuring import Paired, floor_block, left_row
from sandlot.bench.table import Row, Table, machine
from sandlot.errors import DaemonFault
from sandlot.provider import Provider
from sandlot.spec import Spec
from sandlot.testing.observer import footprint


async def measure(*, blocks: int, size: int, burst: int) -> Table:
    """`blocks` pairs of `size` creations one at a time for two kinds of image; then `burst` at once, made and destroyed."""
    with TemporaryDirectory(prefix="sandlot-bench-") as scratch:
        (Path(scratch) / "opt").mkdir()
        (Path(scratch) / "opt" / "mark").write_text("layer\n")
        plain = Spec(image="host", memory="256MiB", cpu=1)
        layered = Spec(image="host", layers=(scratch,), memory="256MiB", cpu=1)
        async with sandlot.local() as provider:
            rows = [
                (await _one_at_a_time(provider, plain, blocks, size)).row("host image, limits set: create to first command"),
                (await _one_at_a_time(provider, layered, blocks, size)).row("with a layer over it: create to first command"),
                await _come_and_go(provider, plain, burst),
            ]
            last = await provider.create(plain)
            mark = footprint(os.getpid())
            await last.aclose()
    return Table("create", machine(), (*rows, left_row(mark)))


async def _one_at_a_time(provider: Provider, spec: Spec, blocks: int, size: int) -> Paired:
    found = Paired()
    number = 0
    for _ in range(blocks + 1):
        floor = floor_block(4 * size)
        times = []
        for _ in range(size):
            number += 1
            begin = time.perf_counter()
            box = await provider.create(spec)
            result = await box.exec(f"exit {number % 200} # {number}")
            times.append(time.perf_counter() - begin)
            await box.aclose()
            if result.exit_code != number % 200:
                raise DaemonFault(f"the first command of {box.name} answered {result.exit_code}")
        if number > size:  # the first block warms up
            found.add(times, floor)
    return found


async def _come_and_go(provider: Provider, spec: Spec, burst: int) -> Row:
    """Sandboxes a second, each made, used once and destroyed, all asked for at once; the floor is that many bare commands."""

    async def one(number: int) -> None:
        async with await provider.create(spec) as box:
            result = await box.exec(f"exit {number % 200} # {number}")
            if result.exit_code != number % 200:
                raise DaemonFault(f"the first command of {box.name} answered {result.exit_code}")

    rates, floors = [], []
    for _ in range(3):
        floors.append(1 / statistics.mean(floor_block(200)))
        begin = time.perf_counter()
        await asyncio.gather(*(one(number) for number in range(burst)))
        rates.append(burst / (time.perf_counter() - begin))
    ratio = statistics.median(rate / floor for rate, floor in zip(rates, floors, strict=True))
    return Row(
        f"{burst} at once: made, used, destroyed",
        3 * burst,
        statistics.median(rates),
        min(rates),
        "1/s",
        statistics.median(floors),
        ratio,
    )
