"""Asking again, for requests that may be asked twice. The one place where this backend does so."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from sandlot.backends.kubernetes.api_errors import ApiError

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0


async def insist(ask: Callable[[], Awaitable[T]], *, within_s: float) -> T:
    """Ask until there is an answer that asking again will not change.

    Pauses double, with half of each at random, and obey `Retry-After`.

    Raises:
        ApiError: one that is not retriable at once; the last one when `within_s` seconds have passed.
    """
    clock = asyncio.get_running_loop().time
    give_up_at_s, pause_s = clock() + within_s, FIRST_PAUSE_S
    while True:
        try:
            return await ask()
        except ApiError as error:
            if not error.retriable:
                raise
            wait_s = max(pause_s * random.uniform(0.5, 1.0), error.retry_after_s or 0.0)
            if clock() + wait_s >= give_up_at_s:
                raise
        await asyncio.sleep(wait_s)
        pause_s = min(LONGEST_PAUSE_S, pause_s * 2)
