"""How much room a pool has."""

from __future__ import annotations

from dataclasses import dataclass

from sandlot.errors import BadRequest
from sandlot.spec import Spec


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolLimits:
    """How much a pool may hold."""

    sandboxes: int = 64
    """Sandboxes that may exist at once: in use, parked, being created, reset or deleted."""
    memory: int | None = None
    """Bytes that their memory limits may add up to. None: no bound."""
    assumed_memory: int = 512 * 2**20
    """Bytes that a spec without a memory limit counts for."""
    leases_each: int | None = None
    """Leases that one sandbox serves before it is replaced. None: any number; 1: never reused."""
    warming: int = 2
    """Creates for stock that may be under way at a time, so that they never crowd out requests."""

    def __post_init__(self) -> None:
        if self.sandboxes < 1 or self.warming < 0:
            raise BadRequest("a pool needs room for at least 1 sandbox, and warming must not be negative")
        if self.leases_each is not None and self.leases_each < 1:
            raise BadRequest(f"leases_each must be at least 1, got {self.leases_each}")

    def memory_of(self, spec: Spec) -> int:
        return self.assumed_memory if spec.memory_bytes is None else spec.memory_bytes
