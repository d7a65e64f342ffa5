"""Taking numbers: floor and candidate in turn, percentiles, the CPU of processes, and what is left afterwards."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from sandlot.bench.table import Row
from sandlot.testing.observer import Footprint

FLOOR_COMMAND: Final = ["/bin/sh", "-c", "true"]


@dataclass(slots=True)
class Paired:
    """Times of a candidate and of its floor, taken in blocks in turn, in seconds."""

    candidate: list[float] = field(default_factory=list)
    floor: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)

    def add(self, candidate: Sequence[float], floor: Sequence[float]) -> None:
        """One pair of blocks."""
        self.candidate += candidate
        self.floor += floor
        self.ratios.append(statistics.median(candidate) / statistics.median(floor))

    def row(self, case: str) -> Row:
        """The median of the blocks' ratios, and percentiles over everything, in milliseconds."""
        return Row(
            case=case,
            n=len(self.candidate),
            p50=percentile(self.candidate, 50) * 1e3,
            p99=percentile(self.candidate, 99) * 1e3,
            unit="ms",
            floor=percentile(self.floor, 50) * 1e3,
            ratio=statistics.median(self.ratios),
        )

    def tail_row(self, case: str) -> Row:
        """The 99th percentile against the floor's."""
        ours, floors = percentile(self.candidate, 99) * 1e3, percentile(self.floor, 99) * 1e3
        return Row(case=case, n=len(self.candidate), p50=ours, p99=None, unit="ms", floor=floors, ratio=ours / floors)


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest-rank percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, round(percent / 100 * len(ordered) + 0.5) - 1))]


def floor_block(count: int) -> list[float]:
    """The floor: `subprocess.run(["/bin/sh", "-c", "true"])`, `count` times, in seconds each."""
    times = []
    for _ in range(count):
        begin = time.perf_counter()
        subprocess.run(FLOOR_COMMAND, check=True)
        times.append(time.perf_counter() - begin)
    return times


async def paired(blocks: int, size: int, one: Callable[[int], Awaitable[float]]) -> Paired:
    """`blocks` times: `size` floors, then `size` candidates; `one(number)` does one and gives its seconds."""
    found = Paired()
    number = 0
    for _ in range(blocks):
        floor = floor_block(size)
        candidate = []
        for _ in range(size):
            candidate.append(await one(number))
            number += 1
        found.add(candidate, floor)
    return found


def cpu_s(pids: Sequence[int]) -> float:
    """CPU seconds used so far by living processes, their waited-for children included."""
    ticks = os.sysconf("SC_CLK_TCK")
    total = 0
    for pid in pids:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        total += sum(int(fields[place]) for place in (11, 12, 13, 14))
    return total / ticks


@dataclass(frozen=True, slots=True)
class Held:
    """What a process holds: open descriptors, threads, resident KiB."""

    descriptors: int
    threads: int
    resident_kib: int


def held(pid: int) -> Held:
    """Read from /proc."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        facts = dict(line.split(":", 1) for line in file if ":" in line)
    return Held(len(os.listdir(f"/proc/{pid}/fd")), int(facts["Threads"]), int(facts["VmRSS"].split()[0]))


def available_bytes() -> int:
    """Memory that the machine could still give, by its own count."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("MemAvailable"))


def left_row(mark: Footprint, seconds: float = 2.0) -> Row:
    """How many processes, namespaces, cgroups, directories and mounts of ours exist after the end, seen from outside."""
    rest = mark.wait_until_nothing_is_left(seconds)
    total = sum(len(names) for names in rest.values())
    return Row(case="left after exit", n=len(mark.processes), p50=float(total), p99=None, unit="count", floor=0.0, ratio=None)
