"""Putting a used sandbox back: from a workspace with thousands of changes to one that answers its next first command."""

from __future__ import annotations

import os
import time

import sandlot
from sandlot.bench.measuring import Paired, available_bytes, cpu_s, floor_block, held, left_row, percentile
from sandlot.bench.table import Row, Table, machine
from sandlot.errors import DaemonFault
from sandlot.sandbox import Sandbox
from sandlot.spec import Spec
from sandlot.testing.observer import daemons, footprint

CHANGE = (
    "mkdir -p /work/d; i=0; while [ $i -lt {count} ]; do echo {number} > /work/d/$i; i=$((i+1)); done; echo x > /usr/bin/mark"
)
LOOK = "test ! -e /work && test ! -e /usr/bin/mark && exit {code}; exit 255 # {number}"


async def measure(*, times: int, files: int) -> Table:
    """`times` episodes in one sandbox, each changing `files` files, each undone and checked by the next first command."""
    async with sandlot.local() as provider:
        box = await provider.create(Spec(image="host", disk="1GiB"))
        pids = daemons(os.getpid())
        pairs, resets = Paired(), []
        cpu, wall = cpu_s(pids), time.perf_counter()
        resident, available = held(max(pids)).resident_kib, available_bytes()
        for number in range(times):
            await box.exec(CHANGE.format(count=files, number=number), check=True)
            floor = floor_block(3)
            begin = time.perf_counter()
            await box.reset()
            resets.append(time.perf_counter() - begin)
            await _clean(box, number)
            pairs.add([time.perf_counter() - begin], floor)
        wall = time.perf_counter() - wall
        grown = (held(max(pids)).resident_kib - resident, (available - available_bytes()) / 2**20)
        spent = (cpu_s(pids) - cpu) / times
        mark = footprint(os.getpid())
    return Table(
        "reset",
        machine(),
        (
            pairs.row(f"reset of {files} changed files to the first command's answer"),
            Row("the reset call alone", times, percentile(resets, 50) * 1e3, percentile(resets, 99) * 1e3, "ms"),
            Row("CPU of the daemons, each episode, commands and clean-up included", times, spent * 1e3, None, "ms"),
            Row("whole episode: changes, reset, check", times, wall / times * 1e3, None, "ms"),
            Row(f"daemon's memory grown over {times} resets", times, float(grown[0]), None, "KiB", float(resident)),
            Row(f"machine's memory used more after {times} resets", times, grown[1], None, "MiB"),
            left_row(mark),
        ),
    )


async def _clean(box: Sandbox, number: int) -> None:
    result = await box.exec(LOOK.format(code=number % 200, number=number))
    if result.exit_code != number % 200:
        raise DaemonFault(f"after reset {number} the sandbox still shows the episode's changes (code {result.exit_code})")
