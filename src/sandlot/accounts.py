"""What a provider says of itself: frozen values, made on demand."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sandlot.backends.base import Part
from sandlot.errors import CleanupFailed
from sandlot.lifecycle import State
from sandlot.pacing import GateStatistics


@dataclass(frozen=True, slots=True)
class Spread:
    """A distribution of durations in seconds, of the latest ones."""

    n: int = 0
    p50_s: float = 0.0
    p90_s: float = 0.0
    p99_s: float = 0.0
    max_s: float = 0.0

    @classmethod
    def of(cls, durations: Iterable[float]) -> Spread:
        ordered = sorted(durations)
        if not ordered:
            return cls()

        def at(share: float) -> float:
            return ordered[max(0, math.ceil(share * len(ordered)) - 1)]  # nearest rank

        return cls(len(ordered), at(0.5), at(0.9), at(0.99), ordered[-1])


@dataclass(frozen=True, slots=True)
class ProviderStatistics:
    """A provider at one moment."""

    states: Mapping[State, int]
    """Sandboxes in each state now; states with none are left out."""
    created: int
    gone: int
    gate: GateStatistics
    queue: Spread
    """Waiting for the pace."""
    create: Spread
    """From the create call to the daemon's hello: image work, if any, is in here."""
    parts: Mapping[Part, Spread]
    """What `create` consists of, as far as the backend can tell: a part it knows nothing of is left out."""
    first_command: Spread
    """From hello to the end of the first command."""
    failures: Mapping[str, int]
    """Failed attempts to create, by the error's kind."""


@dataclass(frozen=True, slots=True)
class Closing:
    """What became of everything a provider made."""

    created: int
    gone: int
    left: tuple[str, ...] = ()
    """Names of sandboxes that could not be deleted and may still exist."""
    kept: tuple[str, ...] = ()
    """Names of leased sandboxes that live on until their lease ends, as was asked."""

    def __str__(self) -> str:
        text = f"created {self.created}, gone {self.gone}, left {len(self.left)}"
        if self.left:
            text += f" ({', '.join(self.left)})"
        if self.kept:
            text += f", kept {len(self.kept)} under a lease ({', '.join(self.kept)})"
        return text

    def check(self) -> Closing:
        """Itself when nothing is left.

        Raises:
            CleanupFailed: `.left` names what may still exist.
        """
        if self.left:
            raise CleanupFailed(str(self), left=self.left, hint="`sandlot gc` tries again")
        return self
