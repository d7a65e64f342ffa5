"""The behaviour that every backend owes its users, as a test suite that runs against any of them.

A backend's own test module imports the checks, one line a module (`from sandlot.testing.conformance.output import *`),
and gives two fixtures, after which `pytest` runs them as if they stood there:

`make_box`
    an async factory `await make_box("busybox", **spec)`: a usable sandbox, released when the test ends. The first argument is
    one of `IMAGES`; `spec` are fields of `sandlot.Spec`.
`provider`
    the `sandlot.Provider` that makes them.

Nothing here knows a backend, and nothing here measures time: waits have generous bounds, there to fail instead of hang.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from sandlot.sandbox import Sandbox

IMAGES: Final = {
    "debian": "Debian with python3, git, procps and sudo; ENV PATH begins with /opt/x/bin and FROM_IMAGE=yes",
    "busybox": "busybox and nothing else, PATH=/bin; /etc/passwd has root and nobody (65534, in group wheel 10)",
    "static": "one static binary /only/tool, no shell, no libc, no /etc: tool exit N | echo ARGS | cat | pwd | sleep N",
    "nonroot": "busybox with USER 1000, which has no entry in /etc/passwd, and nothing writable",
    "workdir": "busybox with a WORKDIR that does not exist and has spaces: '/app/not there yet/deep'",
    "entrypoint": "busybox with WORKDIR /app, ENTRYPOINT [/bin/false entry] and CMD [never]",
}


class MakeBox(Protocol):
    """Makes one usable sandbox from one of `IMAGES`; keyword arguments are fields of `sandlot.Spec`."""

    async def __call__(self, image_name: str = "busybox", /, **spec: object) -> Sandbox: ...


async def until(condition: Callable[[], Awaitable[bool]], *, seconds: float = 60) -> None:
    """Wait for something that happens inside a sandbox, asking again and again; TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110 - the event is in another kernel namespace, there is none to wait for
            await asyncio.sleep(0.03)


async def count(box: Sandbox, pattern: str) -> int:
    """How many processes with `pattern` (which must not match itself, so write `[s]leep`) in their arguments run inside."""
    found = await box.exec(f"ps -o args | grep -c '{pattern}' || true")
    return int(found.stdout)
