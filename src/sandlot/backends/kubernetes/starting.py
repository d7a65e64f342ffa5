"""From an accepted pod to its first link, or to the reason why there will be none: whichever is known first."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field
from typing import Final

from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.api_errors import ApiError
from sandlot.backends.kubernetes.linking import Links, drop
from sandlot.backends.kubernetes.objects import EventList, EventSeen, Pod
from sandlot.backends.kubernetes.options import ClusterOptions
from sandlot.backends.kubernetes.pulls import pulled_s
from sandlot.backends.kubernetes.status import Patience, Trouble, trouble
from sandlot.backends.kubernetes.watching import Tracked
from sandlot.connection import Connection
from sandlot.errors import Infrastructure, ProtocolViolation, SandboxGone, SandlotError

START_PATIENCE_S: Final = 30.0  # for what a node tries again by itself every 10 s or so: volumes, addresses, its runtime
NEWS_S: Final = 2.0  # a link that breaks is often the first sign of a pod's end, whose reason is on its way
PULLED_S: Final = 3.0  # a start that took longer may have had to fetch its image
ASK_S: Final = 2.0  # nobody waits longer for a sandbox that is there, only to know what it waited for
EVENTS_S: Final = 8.0  # a pod whose container does not run for so long: ask what its events say, and again each time


@dataclass(frozen=True, slots=True)
class Start:
    """What it takes to see pods start."""

    api: Api
    namespace: str
    options: ClusterOptions
    links: Links
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while one pod's pulls are asked for."""

    async def first_link(self, pod: Tracked) -> Connection:
        """The link to a pod that was just accepted.

        Raises:
            ImageNotFound, ImageInvalid, BadRequest, Unsupported: it can never start so.
            Capacity, NotReady, SandboxGone, DaemonFault, TransportLost: infrastructure, retriable.
        """
        linking = asyncio.create_task(self.links.connect(pod), name=f"link {pod.name}")
        failing = asyncio.create_task(self._failure(pod), name=f"watch {pod.name}")
        try:
            await asyncio.wait([linking, failing], return_when=asyncio.FIRST_COMPLETED)
            if linking.done() and isinstance(linking.exception(), Infrastructure):
                await asyncio.wait([failing], timeout=NEWS_S)
            if failing.done():
                raise failing.result()
            return linking.result()
        except BaseException:
            drop(linking)
            raise
        finally:
            failing.cancel()

    async def _failure(self, pod: Tracked) -> SandlotError:
        """Why it will not start, once that is certain."""
        clock = asyncio.get_running_loop().time
        since: dict[Patience, float] = {}
        events: Sequence[EventSeen] = ()
        look_at_s = clock() + EVENTS_S
        while True:
            found = self._judge(pod, events)
            wait_s = max(0.0, look_at_s - clock())
            if found is not None:
                left_s = since.setdefault(found.patience, clock()) + self._patience_s[found.patience] - clock()
                if left_s <= 0:
                    return _about(pod.name, found.error)
                wait_s = min(wait_s, left_s)
            elif pod.pod is not None and pod.pod.spec.node_name:
                since.pop("schedule", None)
            pod.news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await pod.news.wait()
            if clock() >= look_at_s:
                events, look_at_s = await self._events(pod), clock() + EVENTS_S

    def _judge(self, pod: Tracked, events: Sequence[EventSeen]) -> Trouble | None:
        if pod.pod is None:
            return None
        found = trouble(pod.pod, events, daemon_image=self.options.daemon_image)
        if found is None and pod.ending is not None:
            found = Trouble(SandboxGone(f"it ended before it was usable: {pod.ending.detail}", why=pod.ending.why))
        return found

    async def _events(self, pod: Tracked) -> Sequence[EventSeen]:
        """What events say of a pod that is stuck on its node. Whoever may not read them waits longer, and no more."""
        if pod.pod is None or not pod.pod.spec.node_name or "running" in pod.times_s:
            return ()
        return await self._all_events(pod.pod)

    async def pulls_s(self, pod: Tracked, start_s: float) -> float | None:
        """Of the seconds that a pod's start took, those of its images' pulls, where it took so long that there may be some.

        None: not known. Only one pod is asked for at a time, since the API server reads all events to find those of one.
        """
        if start_s < PULLED_S or pod.pod is None or self.asking.locked():
            return None
        async with self.asking:
            try:
                async with asyncio.timeout(ASK_S):
                    events = await self._all_events(pod.pod)
            except TimeoutError:
                return None
        return min(start_s, pulled_s(events)) if events else None

    async def _all_events(self, pod: Pod) -> Sequence[EventSeen]:
        query = {"fieldSelector": f"involvedObject.uid={pod.metadata.uid}", "limit": "50"}
        try:
            return (await self.api.get(f"/api/v1/namespaces/{self.namespace}/events", EventList, query=query)).items
        except (ApiError, ProtocolViolation):
            return ()

    @property
    def _patience_s(self) -> Mapping[Patience, float]:
        options = self.options
        return {
            "none": 0.0,
            "schedule": options.unschedulable_s,
            "pull": options.pull_patience_s,
            "start": START_PATIENCE_S,
        }


def _about(name: str, error: SandlotError) -> SandlotError:
    """The same error, told of this sandbox."""
    told = copy(error)
    told.message = f"{name}: {error.message}"
    told.args = (told.message,)
    return told
