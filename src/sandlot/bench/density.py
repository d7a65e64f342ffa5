"""Many sandboxes alive at once: how soon all are usable, whether all still answer after idling, what each costs."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable

import sandlot
from sandlot.bench.measuring import available_bytes, floor_block, left_row, percentile
from sandlot.bench.table import Row, Table, machine
from sandlot.errors import DaemonFault
from sandlot.provider import Provider
from sandlot.sandbox import Sandbox
from sandlot.spec import Spec
from sandlot.testing.observer import footprint

FILES = 20
FILE_BYTES = 4096


async def measure(*, count: int, idle_s: float, progress: Callable[[str], None]) -> Table:
    """`count` sandboxes, each with a sleeping job and `FILES` files; then `idle_s` seconds idle; then one command each."""
    job_bytes = _cost_of_plain_jobs(count)
    before = available_bytes()
    floor_s = percentile(floor_block(200), 50)
    async with sandlot.local() as provider:
        progress(f"making {count} sandboxes")
        begin = time.perf_counter()
        boxes = await asyncio.gather(*(_usable(provider, number) for number in range(count)))
        all_s = time.perf_counter() - begin
        each = (before - available_bytes()) / count
        progress(f"all usable after {all_s:.1f} s; idle for {idle_s:g} s")
        await asyncio.sleep(idle_s)
        answers = await asyncio.gather(*(_answer(box, number) for number, box in enumerate(boxes)))
        idle_each = (before - available_bytes()) / count
        mark = footprint(os.getpid())
        progress("destroying them")
    return Table(
        "density",
        machine(),
        (
            Row(
                f"{count} usable, each with a job and {FILES} files",
                count,
                all_s,
                None,
                "s",
                count * floor_s,
                all_s / (count * floor_s),
            ),
            Row(
                f"answering after {idle_s:g} s idle",
                count,
                float(sum(answers)),
                None,
                "count",
                float(count),
                sum(answers) / count,
            ),
            Row("memory of the machine for each, job and files included", count, each / 2**20, None, "MiB", job_bytes / 2**20),
            Row("the same after idling", count, idle_each / 2**20, None, "MiB", job_bytes / 2**20),
            Row("ours of it", count, (idle_each - job_bytes) / 2**20, None, "MiB"),
            left_row(mark),
        ),
    )


async def _usable(provider: Provider, number: int) -> Sandbox:
    box = await provider.create(Spec(image="host", memory="64MiB", disk="16MiB"))
    files = f"for i in $(seq {FILES}); do head -c {FILE_BYTES} /dev/urandom > /tmp/$i; done"
    script = f"{files}; echo {number} > /tmp/number; exec sleep 3600"
    await box.start(script)
    return box


async def _answer(box: Sandbox, number: int) -> int:
    result = await box.exec("cat /tmp/number; ls /tmp | wc -l")
    if result.stdout.split() != [str(number), str(FILES + 1)]:
        raise DaemonFault(f"{box.name} answered {result.stdout!r} instead of its own number and files")
    return 1


def _cost_of_plain_jobs(count: int) -> float:
    """What the same jobs and files cost without us, in bytes each: the floor of the memory rows."""
    sample = min(count, 100)
    before = available_bytes()
    jobs = [subprocess.Popen(["/bin/sh", "-c", "exec sleep 3600"]) for _ in range(sample)]
    time.sleep(0.5)
    each = (before - available_bytes()) / sample
    for job in jobs:
        job.kill()
        job.wait()
    return max(0.0, each) + FILES * FILE_BYTES
