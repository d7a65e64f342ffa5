"""What a pool measures and says of itself."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sandlot.accounts import Spread
from sandlot.spec import Spec

SAMPLES: Final = 2048  # durations kept for a spread
SPECS: Final = 4096  # specs whose creation time is remembered, the latest
WEIGHT: Final = 0.3  # of a new measurement in a running mean: "lately" is the last handful


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A pool at one moment."""

    created: int
    reused: int
    """Leases served by a sandbox that had served one before."""
    reset: int
    """Resets that left a clean sandbox."""
    discarded: Mapping[str, int]
    """Sandboxes given up, by why."""
    leases: int
    """Leases begun."""
    waiting: int
    """Requests that wait now."""
    idle: int
    leased: int
    coming: int
    """Being created or reset now."""
    leaving: int
    """Being deleted now."""
    wait: Spread
    """From asking to having."""
    reset_time: Spread
    """From the end of a lease to parked again."""


@dataclass(slots=True)
class Mean:
    """A running mean of durations in seconds; None before the first."""

    value_s: float | None = None

    def add(self, seconds: float) -> None:
        self.value_s = seconds if self.value_s is None else self.value_s + WEIGHT * (seconds - self.value_s)


@dataclass(slots=True, eq=False)
class Figures:
    """Counts and durations, as they come."""

    created: int = 0
    reused: int = 0
    reset: int = 0
    leases: int = 0
    discarded: Counter[str] = field(default_factory=Counter)
    waits: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    resets: deque[float] = field(default_factory=lambda: deque(maxlen=SAMPLES))
    lease: Mean = field(default_factory=Mean)
    any_create: Mean = field(default_factory=Mean)
    any_reset_s: float | None = 0.0
    """Of the last reset; None: it did not leave a clean sandbox. 0: there was none, which is no reason to expect ill."""
    _creates: OrderedDict[Spec, Mean] = field(default_factory=OrderedDict)
    _resets: OrderedDict[Spec, float | None] = field(default_factory=OrderedDict)

    def reset_took(self, spec: Spec, seconds: float) -> None:
        """From the end of a lease to a clean sandbox."""
        self.reset += 1
        self.resets.append(seconds)
        self._note_reset(spec, seconds)

    def reset_failed(self, spec: Spec) -> None:
        """It did not leave a clean sandbox, or none at all."""
        self._note_reset(spec, None)

    def reset_s(self, spec: Spec) -> float | None:
        """What the last reset of this spec took, or of any where it is new; None: it failed. 0: there was none."""
        return self._resets.get(spec, self.any_reset_s)

    def _note_reset(self, spec: Spec, seconds: float | None) -> None:
        self.any_reset_s = self._resets[spec] = seconds
        self._resets.move_to_end(spec)
        if len(self._resets) > SPECS:
            self._resets.popitem(last=False)

    def create_took(self, spec: Spec, seconds: float) -> None:
        self.created += 1
        self.any_create.add(seconds)
        mean = self._creates.setdefault(spec, Mean())
        mean.add(seconds)
        self._creates.move_to_end(spec)
        if len(self._creates) > SPECS:
            self._creates.popitem(last=False)

    def create_s(self, spec: Spec) -> float | None:
        """What creating one of this spec takes, lately; for a spec that is new, what creating any takes."""
        mean = self._creates.get(spec)
        return mean.value_s if mean is not None else self.any_create.value_s
