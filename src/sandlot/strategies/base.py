"""What a strategy sees and what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sandlot.spec import Spec


@dataclass(frozen=True, slots=True)
class Holding:
    """What the pool holds of one spec."""

    idle: int = 0
    """Parked: clean and ready."""
    coming: int = 0
    """Being created or reset, and promised to nobody."""
    create_s: float | None = None
    """Seconds that creating one took, lately. None: not known yet."""


@dataclass(frozen=True, slots=True)
class Lease:
    """One sandbox in use."""

    spec: Spec
    since_s: float


@dataclass(frozen=True, slots=True)
class View:
    """A pool at one moment."""

    now_s: float
    holdings: Mapping[Spec, Holding]
    leases: tuple[Lease, ...] = ()
    """In use now, the longest first."""
    expected: tuple[Spec, ...] = ()
    """The requests to come as far as they were announced, the next one first; at most the pool's window."""
    remaining: Mapping[Spec, int] | None = None
    """How often each spec is still expected in all. None: nothing was announced, the future is not known."""
    lease_s: float | None = None
    """Seconds that a lease took, lately. None: not known yet."""
    slots: int = 1
    """Sandboxes that may exist at once."""
    slots_free: int = 0
    memory_free: int | None = None
    """Bytes. None: memory is not limited."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now, each in this order."""

    evict: tuple[Spec, ...] = ()
    """One parked sandbox of each of these goes."""
    warm: tuple[Spec, ...] = ()
    """One more of each of these is created."""


Strategy = Callable[[View], Plan]
