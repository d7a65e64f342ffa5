"""How a provider behaves, and the pure decision whether a failed create is tried again."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from sandlot.errors import SandlotError, Throttled
from sandlot.janitor import Deletion
from sandlot.pacing import Pace, cluster_pace


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a provider behaves. Times in seconds."""

    pace: Pace = field(default_factory=Pace)
    deletion: Deletion = field(default_factory=Deletion)
    create_timeout_s: float = 900.0
    """From the create call to the daemon's hello. Long, since it may have to fetch and unpack an image."""
    ready_timeout_s: float = 30.0
    """From hello to the end of the first command; image work and queueing are never charged to it."""
    attempts: int = 3
    """Creates tried for one sandbox. Only infrastructure failures are tried again, and only before it was usable."""
    retry_within_s: float = math.inf
    """A failure that comes later than this after the create call is not followed by another attempt."""
    patience_s: float = 600.0
    """How long "come back later" is obeyed: being throttled is no failed attempt, the gate makes it wait its turn."""
    first_pause_s: float = 0.2
    """Before the second attempt; doubles with each failure, with up to half of it more at random."""
    longest_pause_s: float = 10.0
    watch_pause_s: float = 1.0
    """Before a watch that broke is opened again."""


def cluster_settings() -> Settings:
    """For a cluster that others use, too: see `cluster_pace`, and fewer deletes than creates on their way at a time."""
    return Settings(pace=cluster_pace(), deletion=Deletion(in_flight=32, give_up_after_s=300.0))


@dataclass(slots=True)
class Tries:
    """The attempts at one sandbox so far. Holds no clock."""

    settings: Settings
    began_s: float
    failed: int = 0

    def pause_after(self, error: SandlotError, now: float) -> float | None:
        """Seconds to wait before the next attempt, or None: there shall be none."""
        if not error.retriable:
            return None
        if isinstance(error, Throttled):
            return 0.0 if now - self.began_s < self.settings.patience_s else None
        self.failed += 1
        if self.failed >= self.settings.attempts or now - self.began_s >= self.settings.retry_within_s:
            return None
        return min(self.settings.longest_pause_s, self.settings.first_pause_s * 2.0 ** (self.failed - 1))
