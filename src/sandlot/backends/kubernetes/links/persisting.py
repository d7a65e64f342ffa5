"""Trying again until a daemon is up: pauses that cost nobody much, however long it takes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from sandlot.connection import Connection
from sandlot.errors import Infrastructure, SandboxGone, TransportLost

PAUSE_SHARE: Final = 0.05
"""Of the time waited so far: an image may be pulled for minutes, and nobody waits a twentieth longer than must be."""


async def until_up(
    attempt: Callable[[], Awaitable[Connection]], *, within_s: float, first_pause_s: float, longest_pause_s: float
) -> Connection:
    """What `attempt` gives, tried for at most `within_s` seconds. Pauses are twice as long at random, so that many drift apart.

    Raises:
        TransportLost: it never came; the last reason is in the text. Retriable.
        SandboxGone, and all that is not retriable: at once.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        try:
            return await attempt()
        except SandboxGone:
            raise
        except Infrastructure as error:
            waited_s = loop.time() - began
            if waited_s >= within_s:
                raise TransportLost(f"no link within {within_s:g} s: {error}") from error
        pause_s = min(max(first_pause_s, PAUSE_SHARE * waited_s), longest_pause_s)
        await asyncio.sleep(min(pause_s * random.uniform(1, 2), within_s - waited_s))
