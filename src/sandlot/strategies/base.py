"""What a strategy sees and what it says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

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
    reset_s: float | None = 0.0
    """Seconds that the last reset of one took, or for a spec that is new, of any; 0: there was none. None: it left a sandbox
    that cannot be used again, or none is to be."""
    promised: int = 0
    """Being created or reset, for requests that wait."""
    waiting: int = 0
    """Requests."""
    waits_s: float = 0.0
    """For how long the first of them has waited."""


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
    enough: Mapping[Spec, int] = field(default_factory=dict)
    """Sandboxes of a spec, in use or not, beyond which none is created for requests that wait: they wait for these. Specs
    that are not named have one created for each request."""
    keep: Mapping[Spec, int] = field(default_factory=dict)
    """Parked sandboxes that do not make way for a request, as long as something is in use that will."""


Strategy = Callable[[View], Plan]
