"""Between two leases: put a sandbox back as it was after creation, and decide whether that may be believed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from sandlot.errors import SandlotError
from sandlot.readiness import first_command
from sandlot.sandbox import ResetReport, Sandbox


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a sandbox may serve another episode."""

    clean: bool
    why: tuple[str, ...] = ()
    """What is not as after creation, or the kind of the error that the reset ended with. Empty when clean."""


def judge(report: ResetReport) -> Verdict:
    """Clean only if the daemon has verified every part of what an episode can change. In doubt: dirty."""
    if report.dirty:
        return Verdict(False, report.dirty)
    return Verdict(True) if report.clean else Verdict(False, ("unverified",))


async def reset(sandbox: Sandbox, *, timeout_s: float) -> Verdict:
    """Reset, judge, and run a first command in what came out.

    Never raises for what happens to the sandbox: a reset that fails or takes longer than `timeout_s` seconds leaves a
    sandbox that is not clean, and the verdict says why.
    """
    try:
        async with asyncio.timeout(timeout_s):
            verdict = judge(await sandbox.reset())
            if verdict.clean:
                await first_command(sandbox, timeout_s)
            return verdict
    except SandlotError as error:
        return Verdict(False, (error.kind,))
    except TimeoutError:
        return Verdict(False, ("timed_out",))
