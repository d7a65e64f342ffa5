"""Getting a new link for a lost one: again and again, with growing pauses, up to a bound."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sandlot.errors import SandboxGone, SandlotError, TransportLost
from sandlot.limits import REOPEN_FIRST_PAUSE_S, REOPEN_LONGEST_PAUSE_S

T = TypeVar("T")


async def reopened(reopen: Callable[[], Awaitable[T]], usable: Callable[[T], bool], *, within_s: float, cause: str) -> T:
    """What `reopen` gives, once that is `usable`. Pauses have jitter, so that many clients do not come back at once.

    Raises:
        TransportLost: nothing usable came within `within_s` seconds; the last reason is in the text, `cause` to begin with.
        SandboxGone, and all that is not retriable: at once.
    """
    loop = asyncio.get_running_loop()
    give_up, pause_s = loop.time() + within_s, REOPEN_FIRST_PAUSE_S
    while True:
        try:
            async with asyncio.timeout_at(give_up):
                fresh = await reopen()
            if usable(fresh):
                return fresh
        except SandlotError as error:
            if isinstance(error, SandboxGone) or not error.retriable:
                raise
            cause = str(error)
        except (OSError, TimeoutError) as error:
            cause = str(error) or cause
        left_s = give_up - loop.time()
        if left_s <= 0:
            raise TransportLost(f"no new link within {within_s:g} s: {cause}")
        await asyncio.sleep(min(left_s, pause_s * random.uniform(0.5, 1.5)))
        pause_s = min(2 * pause_s, REOPEN_LONGEST_PAUSE_S)
