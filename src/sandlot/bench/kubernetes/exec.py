"""A command that does nothing, in a pod and on this machine: what each way to the daemon adds, and what it spares."""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote

import aiohttp
import msgspec

import sandlot
from sandlot.backends.kubernetes.options import ClusterOptions, Connect
from sandlot.backends.kubernetes.publishing.publisher import is_published
from sandlot.bench.kubernetes import pods
from sandlot.bench.kubernetes.access import session
from sandlot.bench.kubernetes.burst import LEFT_S
from sandlot.bench.kubernetes.images import Pulled, published
from sandlot.bench.kubernetes.outside import Observer, namespace
from sandlot.bench.measuring import percentile
from sandlot.bench.table import Row, Table, machine
from sandlot.errors import DaemonFault
from sandlot.sandbox import Sandbox
from sandlot.spec import Spec

LOCAL: Final = "this machine"
STREAM: Final = "exec stream of the API server"
WAYS: Final[tuple[Connect, ...]] = ("dial-in", "dial-out", "exec-bridge")
_PROTOCOL: Final = "v5.channel.k8s.io"
_STATUS: Final = 3
"""The channel on which the API server says how the command ended."""

Run = Callable[[int], Awaitable[int]]
"""Runs a command that no other equals, made from a number, and gives the code that it ended with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Commands:
    """What is asked for."""

    blocks: int
    size: int
    image: str
    advertise: str | None


@dataclass(slots=True)
class Times:
    """Seconds of one way, block by block."""

    blocks: list[list[float]] = field(default_factory=list)

    def everything(self) -> list[float]:
        return [one for block in self.blocks for one in block]

    def row(self, case: str, floor: Times | None) -> Row:
        """Percentiles over everything, and the median of the blocks' ratios to the floor's blocks of the same round."""
        ratio = None
        if floor is not None:
            pairs = zip(self.blocks, floor.blocks, strict=True)
            ratio = statistics.median(statistics.median(mine) / statistics.median(other) for mine, other in pairs)
        return Row(
            case=case,
            n=len(self.everything()),
            p50=percentile(self.everything(), 50) * 1e3,
            p99=percentile(self.everything(), 99) * 1e3,
            unit="ms",
            floor=None if floor is None else percentile(floor.everything(), 50) * 1e3,
            ratio=ratio,
        )


async def measure(commands: Commands, progress: Callable[[str], None]) -> Table:
    """One sandbox a way and one on this machine, asked in turn, block by block."""
    images = await published(commands.image, "real", progress)
    async with session(4) as opened, namespace(opened, name := f"sandlot-bench-{time.time_ns():x}"):
        async with AsyncExitStack() as stack:
            runs = {LOCAL: await stack.enter_async_context(_local(commands.image))}
            for way in WAYS:
                progress(f"a pod for {way}")
                box = await stack.enter_async_context(_pod(commands, images, name, way))
                runs[way] = _through(box)
            runs[STREAM] = _streamed(opened, name, box.name)
            progress("measuring")
            times = await _in_turn(runs, commands)
        left = await Observer(opened, name).left(LEFT_S)
    return Table("exec", machine(), (*_rows(times), _left_row(left)))


async def _in_turn(runs: dict[str, Run], commands: Commands) -> dict[str, Times]:
    times = {way: Times() for way in runs}
    number = 0
    for block in range(commands.blocks + 1):
        for way, run in runs.items():
            taken = []
            for _ in range(commands.size):
                number += 1
                begin = time.perf_counter()
                code = await run(number)
                taken.append(time.perf_counter() - begin)
                if code != number % 200:
                    raise DaemonFault(f"exit {number % 200} through {way} answered {code}")
            if block:  # the first warms up
                times[way].blocks.append(taken)
    return times


def _rows(times: dict[str, Times]) -> list[Row]:
    rows = [times[LOCAL].row(f"no-op on {LOCAL}", None)]
    rows += [times[way].row(f"no-op by {way}, beside {LOCAL}", times[LOCAL]) for way in WAYS]
    rows.append(times[STREAM].row(f"no-op by an {STREAM}, beside {LOCAL}", times[LOCAL]))
    rows += [times[STREAM].row(f"{STREAM}, beside {way}", times[way]) for way in WAYS]
    return rows


def _left_row(left: dict[str, list[str]]) -> Row:
    total = float(sum(len(names) for names in left.values()))
    return Row("left after exit, pods and leases", len(WAYS), total, None, "count", 0.0)


# --- ways -------------------------------------------------------------------------------------------------------------
@asynccontextmanager
async def _local(image: str) -> AsyncIterator[Run]:
    """The same image where this machine has it, so that the same shell answers; else its own system."""
    wanted = Spec(image="host" if is_published(image) else image)
    async with sandlot.local() as provider, await provider.create(wanted) as box:
        yield _through(box)


@asynccontextmanager
async def _pod(commands: Commands, images: Pulled, name: str, way: Connect) -> AsyncIterator[Sandbox]:
    advertise = commands.advertise if way == "dial-out" else None
    options = ClusterOptions(namespace=name, connect=way, advertise=advertise, daemon_image=images.daemon)
    wanted = pods.spec(images.task, "real")
    async with sandlot.kubernetes(options=options) as provider, await provider.create(wanted) as box:
        yield box


def _through(box: Sandbox) -> Run:
    async def run(number: int) -> int:
        return (await box.exec(_script(number))).exit_code

    return run


def _script(number: int) -> str:
    return f"exit {number % 200} # {number}"


def _streamed(opened: aiohttp.ClientSession, name: str, pod: str) -> Run:
    """As clients of Kubernetes do it: a WebSocket to `pods/exec` for each command, through the API server and the kubelet."""

    async def run(number: int) -> int:
        words = "&".join(f"command={quote(word)}" for word in ("sh", "-c", _script(number)))
        path = f"/api/v1/namespaces/{name}/pods/{pod}/exec?{words}&container=task&stdout=true&stderr=true"
        async with opened.ws_connect(path, protocols=[_PROTOCOL], headers={"Accept": "*/*"}, max_msg_size=0) as stream:
            async for message in stream:
                if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == bytes([_STATUS]):
                    return code_of(message.data[1:])
        raise DaemonFault(f"an exec stream of the API server ended without a status (command {number})")

    return run


class _Cause(msgspec.Struct):
    reason: str = ""
    message: str = ""


class _Details(msgspec.Struct):
    causes: list[_Cause] = []


class _Status(msgspec.Struct):
    status: str
    message: str = ""
    details: _Details = msgspec.field(default_factory=_Details)


def code_of(status: bytes) -> int:
    """The exit code in the `Status` object that ends a stream."""
    said = msgspec.json.decode(status, type=_Status)
    if said.status == "Success":
        return 0
    codes = [int(cause.message) for cause in said.details.causes if cause.reason == "ExitCode"]
    if not codes:
        raise DaemonFault(f"an exec stream of the API server failed: {said.message}")
    return codes[0]
