"""Daemons for pods on nodes that run nothing: one small program plays them all.

The fake nodes say Running and give each pod an address of its own, all of them on this machine's loopback. The program
(`daemon/examples/fleet`) listens on all of them at once, or dials out for each pod, and answers with the name of the pod
whose secret it was given: whoever gets the right name has gone the whole way of the link. It plays a pod from the moment
the API server says Running, as a kubelet would have its container by then.
"""

from __future__ import annotations

import asyncio
import os
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp
import msgspec

from sandlot.bench.kubernetes.watching import batches, version
from sandlot.bench.measuring import cpu_s
from sandlot.errors import DaemonFault, Unsupported

VARIABLES: Final = ("SANDLOT_ENROL", "SANDLOT_KEY", "SANDLOT_DIAL", "SANDLOT_LISTEN")


class _Variable(msgspec.Struct):
    name: str
    value: str = ""


class _Container(msgspec.Struct):
    env: list[_Variable] = []


class _Spec(msgspec.Struct):
    containers: list[_Container]


class _Status(msgspec.Struct):
    address: str = msgspec.field(name="podIP", default="")


class _Metadata(msgspec.Struct):
    name: str


class _Pod(msgspec.Struct):
    metadata: _Metadata
    spec: _Spec
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: _Pod


_decoder: Final = msgspec.json.Decoder(_Event)


class Fleet:
    """A running fleet."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._own_cpu_s = cpu_s([os.getpid()])

    def cpu_s(self) -> float:
        """CPU seconds of the program, and of this process, which does nothing but tell it of pods."""
        return cpu_s([self._process.pid, os.getpid()]) - self._own_cpu_s


@asynccontextmanager
async def fleet(session: aiohttp.ClientSession, namespace: str, program: Path) -> AsyncIterator[Fleet]:
    """Play the daemon of every pod that runs in `namespace` while the block lasts."""
    process = await asyncio.create_subprocess_exec(program, stdin=PIPE)
    telling = asyncio.create_task(_tell(session, namespace, process))
    try:
        yield Fleet(process)
        if telling.done():
            await telling
        if process.returncode is not None:
            raise DaemonFault(f"the fake fleet ended with code {process.returncode}")
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)
        if process.returncode is None:
            process.terminate()
        await process.wait()


def built_fleet() -> Path:
    """The program, as built last in this checkout.

    Raises:
        Unsupported: it is not built, or this is no checkout.
    """
    target = Path(__file__).parents[4] / "daemon" / "target"
    found = [path for profile in ("release", "thin") for path in target.glob(f"*/{profile}/examples/fleet")]
    if not found:
        raise Unsupported(
            "the fake fleet is not built", hint="in a checkout: cd daemon && cargo build --release --example fleet"
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def lines(events: Iterable[bytes]) -> bytes:
    """What the program is told of a batch of events: pods that run now, and pods that are gone."""
    told = []
    for event in map(_decoder.decode, events):
        pod = event.object
        if event.type == "DELETED":
            told.append(f"gone\t{pod.metadata.name}\n")
        elif event.type == "ADDED":
            env = {variable.name: variable.value for variable in pod.spec.containers[0].env}
            told.append(
                "\t".join(["runs", pod.metadata.name, pod.status.address, *(env.get(name, "") for name in VARIABLES)]) + "\n"
            )
    return "".join(told).encode()


async def _tell(session: aiohttp.ClientSession, namespace: str, process: Process) -> None:
    path = f"/api/v1/namespaces/{namespace}/pods"
    assert process.stdin is not None
    # With this selector a pod is ADDED when it begins to run and DELETED when it no longer does.
    running = {"fieldSelector": "status.phase=Running"}
    async for events in batches(session, path, await version(session, path), running):
        process.stdin.write(lines(events))
        await process.stdin.drain()
