"""Queued creates by kind: first come, first served, except that of a kind which only fails few are tried at a time.

Pure. Every call is O(log kinds), whatever the length of the queue.
"""

from __future__ import annotations

import heapq
from collections import Counter, OrderedDict
from collections.abc import Hashable
from itertools import count
from typing import Final

AILING_AFTER: Final = 3  # failures of a kind with no success between: at one in ten by chance once in a thousand
AILING_IN_FLIGHT: Final = 2  # creates of an ailing kind: one that hangs for its whole time-out is not the only probe
AILING_KINDS: Final = 4096  # failing kinds that are remembered, oldest out first


class Lanes:
    """The queue of one gate, and how each kind has fared."""

    def __init__(self) -> None:
        self._serials = count()
        self._lanes: dict[Hashable, OrderedDict[int, int]] = {}
        """Tickets of each kind, in order, with their serial numbers. No lane is empty."""
        self._kinds: dict[int, Hashable] = {}
        self._heads: list[tuple[int, int]] = []
        """Serial number and ticket. The first of every lane that is not barred is in here; so may be what has gone."""
        self._running: Counter[Hashable] = Counter()
        self._failures: OrderedDict[Hashable, int] = OrderedDict()

    def add(self, ticket: int, kind: Hashable) -> None:
        self._kinds[ticket] = kind
        lane = self._lanes.setdefault(kind, OrderedDict())
        lane[ticket] = next(self._serials)
        if len(lane) == 1:
            self._offer(kind)

    def remove(self, ticket: int) -> bool:
        """Take it out of the queue. False when it is not in it."""
        if ticket not in self._kinds:
            return False
        kind = self._kinds.pop(ticket)
        lane = self._lanes[kind]
        was_first = next(iter(lane)) == ticket
        del lane[ticket]
        if not lane:
            del self._lanes[kind]
        elif was_first:
            self._offer(kind)
        return True

    def take(self) -> tuple[int, Hashable] | None:
        """The next ticket and its kind, which is under way from now on; None when nothing may start."""
        if not self.ready:
            return None
        _, ticket = heapq.heappop(self._heads)
        kind = self._kinds[ticket]
        self._running[kind] += 1
        self.remove(ticket)
        return ticket, kind

    def ended(self, kind: Hashable, how: str) -> bool:
        """One that was under way has ended. True when its kind was ailing before."""
        barred, ailing = self._barred(kind), self.ailing(kind)
        self._running[kind] -= 1
        if not self._running[kind]:
            del self._running[kind]
        if how == "served":
            self._failures.pop(kind, None)
        elif how in ("failed", "broken"):
            self._failures[kind] = self._failures.get(kind, 0) + 1
            if len(self._failures) > AILING_KINDS:
                self._forgive(next(iter(self._failures)))
        if barred:
            self._offer(kind)
        return ailing

    def ailing(self, kind: Hashable) -> bool:
        return self._failures.get(kind, 0) >= AILING_AFTER

    @property
    def ready(self) -> bool:
        """Something may start."""
        while self._heads:
            serial, ticket = self._heads[0]
            kind = self._kinds.get(ticket)
            if ticket in self._kinds and self._lanes[kind][ticket] == serial and not self._barred(kind):
                return True
            heapq.heappop(self._heads)
        return False

    def __len__(self) -> int:
        return len(self._kinds)

    def __contains__(self, ticket: int) -> bool:
        return ticket in self._kinds

    def _barred(self, kind: Hashable) -> bool:
        return self.ailing(kind) and self._running[kind] >= AILING_IN_FLIGHT

    def _forgive(self, kind: Hashable) -> None:
        del self._failures[kind]
        self._offer(kind)

    def _offer(self, kind: Hashable) -> None:
        """Its first may start, if there is one and its kind is not barred."""
        lane = self._lanes.get(kind)
        if lane is not None and not self._barred(kind):
            ticket = next(iter(lane))
            heapq.heappush(self._heads, (lane[ticket], ticket))
