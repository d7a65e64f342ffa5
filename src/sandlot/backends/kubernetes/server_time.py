"""What time it is for the API server, told by the dates of its answers: no other clock decides whether a lease has ended."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from sandlot.errors import Infrastructure

KEPT: Final = 16  # answers that count: enough to find a quick one, few enough to follow a clock that was set


class ServerClock:
    """A lower bound of the server's time: at most a second and one answer's way behind it.

    A date has whole seconds and is older than its arrival, so date minus arrival is never ahead of the truth; the largest of
    the last few is the closest. `monotonic` runs at the same speed and is never set.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._offsets: deque[float] = deque(maxlen=KEPT)
        self._last = ""

    def observe(self, date: str) -> None:
        """An answer with this `Date` header has just come. What is no date is ignored."""
        if date == self._last:
            return  # the same second again, later: it can only say less
        try:
            stamp = parsedate_to_datetime(date)
        except ValueError:
            return
        if stamp.tzinfo is None:
            return
        self._last = date
        self._offsets.append(stamp.timestamp() - self._monotonic())

    def now(self) -> float:
        """Unix time in seconds.

        Raises:
            Infrastructure: no answer with a date has come yet.
        """
        if not self._offsets:
            raise Infrastructure("the API server has not told its time yet")
        return self._monotonic() + max(self._offsets)


def micro_time(unix_s: float) -> str:
    """As Kubernetes writes a `MicroTime`."""
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def unix_time(text: str) -> float:
    """From a `Time` or `MicroTime`. Raises ValueError for what is neither."""
    return datetime.fromisoformat(text).timestamp()
