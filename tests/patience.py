"""How long a promise may be waited for on a machine that has other things to do."""

from __future__ import annotations

import time
from pathlib import Path

_PRESSURE = Path("/proc/pressure")
LEAST_SHARE = 0.1
"""However busy the machine, a tenth of the time counts, so that every wait has an end: ten times the promise."""


class Patience:
    """So many seconds from now on; of each, only that part counts in which nobody waited for a processor or for the disk.

    On a machine of one's own that is nearly all of it. The kernel tells it (pressure stall information, `some`); where it
    does not, `LEAST_SHARE` of everything counts.
    """

    def __init__(self, promise_s: float) -> None:
        self._promise_s = promise_s
        self._began_s = self._looked_s = time.monotonic()
        self._stalled_s = _stalled_s()
        self.counted_s = 0.0
        """Of the time up to the last look."""

    def over(self) -> bool:
        """Whether the promise has run out. Asks the kernel: call it at every look."""
        now, stalled_s = time.monotonic(), _stalled_s()
        self.counted_s += counted_s(now - self._looked_s, self._stalled_s, stalled_s)
        self._looked_s, self._stalled_s = now, stalled_s
        return self.counted_s >= self._promise_s

    @property
    def passed_s(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began_s


Stalled = dict[str, float] | None
"""Seconds that something waited since boot, for each thing that may be waited for."""


def counted_s(passed_s: float, before: Stalled, after: Stalled) -> float:
    """What counts of a time in which this was waited for. Pure."""
    if before is None or after is None:
        return LEAST_SHARE * passed_s
    return max(LEAST_SHARE * passed_s, passed_s - max(after[what] - before[what] for what in after))


def _stalled_s() -> Stalled:
    try:
        return {what: _total_s((_PRESSURE / what).read_text()) for what in ("cpu", "io", "memory")}
    except OSError:
        return None


def _total_s(text: str) -> float:
    return float(text.partition("total=")[2].split()[0]) / 1e6
