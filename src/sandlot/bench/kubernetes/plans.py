"""What a benchmark and its client processes tell each other: one JSON object a line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Literal

import msgspec

from sandlot.backends.kubernetes.options import Connect, Delivery

Kind = Literal["plain", "sandboxes", "steps"]
Nodes = Literal["real", "fake"]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What one client process does."""

    kind: Kind
    mark: str
    """8 hex digits, unique among the clients of a run; names of plain pods begin with it."""
    count: int
    """Pods or sandboxes asked for, all at once."""
    delay_s: float
    """After the common beginning."""
    namespace: str
    nodes: Nodes
    image: str
    connect: Connect
    advertise: str | None = None
    """Where daemons dial; only with dial-out. None: found by the way to them."""
    delivery: Delivery = "image"
    daemon_image: str = ""
    kubeconfig: str | None = None
    """None: the usual one."""
    idle_s: float = 0.0
    """How long `steps` does nothing with what it has."""


class Harvest(msgspec.Struct, frozen=True, kw_only=True):
    """What came of the asking."""

    moments_s: list[float]
    """When each became usable (plain pods: Ready), by the machine's monotonic clock."""
    failures: dict[str, int]
    """What was asked for and never came, by class."""
    retried: dict[str, int] = {}
    """Attempts that failed, by class, whether or not another one succeeded."""
    cpu_s: dict[str, float] = {}
    """CPU of each step, where they are taken one after another."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One client's whole life."""

    asked: int
    began_s: float
    """When it asked, by the machine's monotonic clock."""
    harvest: Harvest
    cpu_s: float
    """CPU of the process from opening until everything was deleted; interpreter start and imports are not in it."""
    peak_kib: int
    """The most memory that was resident at a time, the interpreter's and its modules' included."""
    base_kib: int
    """Resident before opening."""


Make = Callable[[], Awaitable[Harvest]]
"""Asks for everything at once, and returns when all has come that will."""
Work = Callable[[Plan], AbstractAsyncContextManager[Make]]
"""What a client does: entering opens, the call in the block makes, leaving deletes all that was made."""
