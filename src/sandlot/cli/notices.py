"""What is waited for and what is tried again, on standard error: no verb is silent while nothing happens."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from sandlot.cli.output import say

EVERY_S: Final = 5.0


def show_notices(clock: Callable[[], float] = time.monotonic) -> Callable[[str], None]:
    """A line at most every `EVERY_S` seconds; what comes between is dropped, since a thousand pods wait for the same."""
    return _Notices(clock)


class _Notices:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._next_s = float("-inf")

    def __call__(self, text: str) -> None:
        now = self._clock()
        if now >= self._next_s:
            self._next_s = now + EVERY_S
            say(text)
