"""The seam between deciding that a sandbox shall exist and making one exist.

A backend knows how to make, find and remove sandboxes of one kind. It never retries, paces or decides readiness:
the provider does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from sandlot.connection import Connection
from sandlot.spec import Owner, Spec


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """One existing sandbox as a listing shows it."""

    name: str
    owner: Owner
    state: str
    created_s: float
    """Unix time in seconds."""
    image: str = ""
    lease_left_s: float | None = None
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Gone:
    """A sandbox ended without being asked to by its backend's caller."""

    name: str
    why: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Grant:
    """How long a sandbox may live without its client: nothing for `attached`, the lease for `leased`."""

    owner: Owner = "attached"
    lease_s: float | None = None
    idle_timeout_s: float | None = None
    max_lifetime_s: float | None = None


Part = Literal["request", "schedule", "pull", "start"]
"""What a create consists of, in this order: the service takes it; a place is found for it; its image is fetched and
unpacked there; the sandbox is made and its daemon says hello."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A new sandbox whose daemon has said hello."""

    connection: Connection
    spans: Mapping[Part, float] = field(default_factory=dict)
    """Seconds that each part took, as far as the backend can tell them apart. A part it knows nothing of is left out."""


class Backend(Protocol):
    """Makes, finds and removes sandboxes. All methods may be called concurrently."""

    @property
    def kind(self) -> str: ...

    async def start(self) -> None:
        """Bring up what the backend needs. Raises `Unsupported` with a remedy where this machine cannot."""

    async def create(self, name: str, spec: Spec, grant: Grant) -> Opened:
        """Make the sandbox `name` (chosen by the caller, recorded before this call) and open its link.

        Cancelled or failed at any point it may leave the sandbox behind: the caller then calls `delete(name)`.
        """

    async def reopen(self, name: str) -> Connection:
        """A new link to a living sandbox. Raises `SandboxGone` with why, or `TransportLost`."""

    async def delete(self, name: str, *, grace_s: float = 0.0) -> bool:
        """Remove it; returns after nothing of it is left. False when there was none. Idempotent."""

    async def clear(self) -> None:
        """Delete all that is attached, if that is quicker in one go than one by one; else do nothing.

        Only to save work: each is still deleted by name afterwards, which finds nothing left.
        """

    async def list(self) -> list[SandboxInfo]: ...

    async def renew(self, name: str, lease_s: float) -> None: ...

    def watch(self) -> AsyncIterator[Gone]:
        """Sandboxes that end by themselves, as it happens, until closed."""

    async def aclose(self) -> None:
        """Delete every attached sandbox and stop what `start` brought up. Idempotent.

        An event loop that ends cancels it once: called again, it goes on and leaves nothing open.
        """
