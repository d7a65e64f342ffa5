"""Scripted interference for the fake backend: what goes wrong at the n-th time a point is reached."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict, deque

from sandlot.testing.fake import Point

Trouble = float | Exception | None
"""Seconds to wait, an error to raise, or nothing."""


class Script:
    """Interferes as told, point by point, and counts how often each was reached. After the last trouble all goes well."""

    def __init__(self, **troubles: list[Trouble]) -> None:
        """Points are named with `_` for `.`: `create_before=[Throttled("later"), 5.0]`."""
        self._troubles: defaultdict[str, deque[Trouble]] = defaultdict(deque)
        for point, listed in troubles.items():
            self._troubles[point.replace("_", ".", 1)] = deque(listed)
        self.reached: Counter[str] = Counter()

    def always(self, point: Point, trouble: Trouble) -> Script:
        """The same every time, once the list for this point is through."""
        self._troubles[f"always {point}"] = deque([trouble])
        return self

    async def __call__(self, point: Point, name: str) -> None:
        self.reached[point] += 1
        listed = self._troubles[point]
        trouble = listed.popleft() if listed else next(iter(self._troubles[f"always {point}"]), None)
        if isinstance(trouble, Exception):
            raise trouble
        if trouble is not None:
            await asyncio.sleep(trouble)
