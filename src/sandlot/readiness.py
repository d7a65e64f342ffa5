"""When a sandbox is usable: its first command has succeeded.

The command is the script `:` by the image's own `sh`. It goes the whole way that the caller's commands will go: request,
a process in the sandbox's namespaces under its limits, the image's files and loader, exit, answer.

An image need not have a shell. There the daemon makes the process, and executing `sh` in it fails; the daemon reports
127, as a shell would. That is accepted: everything of ours has worked up to the image's own content, and the content has
no command that we could know of and run without effect. Every other end is a failure:

    126, or death by a signal     there is a `sh` that cannot run: the image is broken or for another machine
    out of memory                 its memory limit leaves no room for a shell
    timed out                     the sandbox does not answer in time
"""

from __future__ import annotations

import asyncio
from typing import Final

from sandlot.errors import BadRequest, DeadlineExceeded, ImageInvalid, NotReady, SandlotError
from sandlot.result import Result
from sandlot.sandbox import Sandbox

SCRIPT: Final = ":"
NO_SHELL: Final = 127
KEPT_BYTES: Final = 1024


def judge(name: str, result: Result) -> SandlotError | None:
    """None when the sandbox is usable, else why it is not."""
    if result.timed_out:
        return NotReady(f"{name}: the first command did not end in time")
    if result.oom_killed:
        return BadRequest(f"{name}: the first command was killed for memory", hint="give the sandbox more memory")
    if result.code in (0, NO_SHELL):
        return None
    how = f"exit code {result.code}" if result.signal is None else f"signal {result.signal}"
    said = (result.stderr.strip() or result.stdout.strip())[:200]
    return ImageInvalid(
        f"{name}: the image's sh cannot run ({how})" + (f": {said}" if said else ""),
        hint="is the image built for this machine's processor?",
    )


async def first_command(sandbox: Sandbox, timeout_s: float) -> None:
    """Run it, and return once it has succeeded.

    Raises:
        NotReady: it did not within `timeout_s` seconds (infrastructure, retriable).
        ImageInvalid, BadRequest: the image or the limits make every command impossible.
        SandboxGone, TransportLost, DaemonFault: as from any command.
    """
    try:
        async with asyncio.timeout(timeout_s):
            result = await sandbox.exec(SCRIPT, cap=KEPT_BYTES)
    except (TimeoutError, DeadlineExceeded) as error:
        raise NotReady(f"{sandbox.name} did not answer a first command within {timeout_s:g} s") from error
    failure = judge(sandbox.name, result)
    if failure is not None:
        raise failure
