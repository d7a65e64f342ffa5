"""What events say of pods, asked for sparingly.

An API server has no index of events: to answer what was said of one pod it reads those of all, from its store. A thousand
pods that start slowly, each asked for by itself, keep it so busy that they start more slowly still. So a client has one
such question under way at a time, rests after it, and asks once for all pods that are stuck.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from sandlot.backends.kubernetes.api import Api, Query
from sandlot.backends.kubernetes.api_errors import ApiError
from sandlot.backends.kubernetes.objects import EventList, EventSeen
from sandlot.errors import ProtocolViolation

SHARE: Final = 0.05
"""Of the time, the most in which a client has the API server look through events."""
PAGE: Final = 500
MOST_WARNINGS: Final = 10_000
"""A look ends there, at some 5 MB."""


class Events:
    """The events of one namespace. Whoever may not read them knows of none."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._path = api, f"/api/v1/namespaces/{namespace}/events"
        self._clock = asyncio.get_running_loop().time
        self._asks = False
        self._rests_until_s = self._clock()
        self._look: asyncio.Task[None] | None = None
        self._warnings: Mapping[str, Sequence[EventSeen]] = {}

    @property
    def rests(self) -> bool:
        """It is not the time for another question."""
        return self._look is not None or self._asks or self._clock() < self._rests_until_s

    async def of(self, uid: str) -> Sequence[EventSeen]:
        """All of one pod's, as far as one page has them; none while it rests."""
        if self.rests:
            return ()
        return await self._asking(lambda: self._list({"fieldSelector": f"involvedObject.uid={uid}", "limit": "50"}, 50))

    async def warnings(self, uid: str) -> Sequence[EventSeen]:
        """Those that warn of this pod, as of the last look; while it rests nobody looks again."""
        if not self.rests:
            self._look = asyncio.create_task(self._look_around(), name="look for warnings")
        if self._look is not None:
            await asyncio.wait([self._look])
        return self._warnings.get(uid, ())

    def close(self) -> None:
        """Nobody asks any more."""
        if self._look is not None:
            self._look.cancel()

    # --- inside -------------------------------------------------------------------------------------------------------
    async def _look_around(self) -> None:
        # Of what cannot be scheduled the pod's own status tells, and there may be very many of them.
        query = {"fieldSelector": "type=Warning,reason!=FailedScheduling", "limit": str(PAGE)}
        found: defaultdict[str, list[EventSeen]] = defaultdict(list)
        try:
            for event in await self._asking(lambda: self._list(query, MOST_WARNINGS)):
                found[event.involved_object.uid].append(event)
            self._warnings = found
        finally:
            self._look = None

    async def _asking(self, ask: Callable[[], Awaitable[list[EventSeen]]]) -> list[EventSeen]:
        began_s, self._asks = self._clock(), True
        try:
            return await ask()
        except (ApiError, ProtocolViolation):
            return []
        finally:
            now_s, self._asks = self._clock(), False
            self._rests_until_s = now_s + (now_s - began_s) * (1 / SHARE - 1)

    async def _list(self, query: Query, most: int) -> list[EventSeen]:
        found: list[EventSeen] = []
        asked = dict(query)
        while True:
            page = await self._api.get(self._path, EventList, query=asked)
            found += page.items
            if not page.metadata.continue_ or len(found) >= most:
                return found
            asked["continue"] = page.metadata.continue_
