"""The requests to come, as far as they were announced: in order, with some taken out of turn."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping
from itertools import islice
from types import MappingProxyType

from sandlot.spec import Spec


class Demand:
    """A queue of specs that also gives up the first one of a certain kind in O(1)."""

    def __init__(self) -> None:
        self._order: OrderedDict[int, Spec] = OrderedDict()  # a dict would pass over every hole at its head
        self._places: defaultdict[Spec, deque[int]] = defaultdict(deque)
        self._remaining: Counter[Spec] = Counter()
        self._next = 0
        self.known = False
        """Whether anything was ever announced."""

    def expect(self, specs: Iterable[Spec]) -> None:
        """Announce requests, in order, after those announced before."""
        self.known = True
        for spec in specs:
            self._order[self._next] = spec
            self._places[spec].append(self._next)
            self._remaining[spec] += 1
            self._next += 1

    def take(self, spec: Spec) -> None:
        """A request has come: its first announcement is fulfilled. One that was not announced changes nothing."""
        places = self._places.get(spec)
        if not places:
            return
        del self._order[places.popleft()]
        self._remaining[spec] -= 1
        if not places:
            del self._places[spec], self._remaining[spec]

    def window(self, n: int) -> tuple[Spec, ...]:
        """The next `n` requests."""
        return tuple(islice(self._order.values(), n))

    @property
    def remaining(self) -> Mapping[Spec, int] | None:
        """How often each spec is still expected; None when nothing was ever announced."""
        return MappingProxyType(self._remaining) if self.known else None

    def __len__(self) -> int:
        return len(self._order)
