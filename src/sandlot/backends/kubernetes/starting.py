"""From an accepted pod to its first link, or to the reason why there will be none: whichever is known first."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Final

from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.api_errors import ApiError
from sandlot.backends.kubernetes.asking import Events
from sandlot.backends.kubernetes.deleting import get_pod
from sandlot.backends.kubernetes.linking import Links, drop
from sandlot.backends.kubernetes.nodes import has_node
from sandlot.backends.kubernetes.noticing import Notice, log_notice
from sandlot.backends.kubernetes.objects import EventSeen, SeenPod
from sandlot.backends.kubernetes.options import ClusterOptions
from sandlot.backends.kubernetes.pulls import pulled_s
from sandlot.backends.kubernetes.status import Patience, Trouble, trouble
from sandlot.backends.kubernetes.unnoticed import USUAL, Schedulers, no_such_node, not_scheduled, not_taken, unnoticed
from sandlot.backends.kubernetes.watching import Tracked
from sandlot.connection import Connection
from sandlot.errors import Infrastructure, SandboxGone, SandlotError

START_PATIENCE_S: Final = 30.0  # for what a node tries again by itself every 10 s or so: volumes, addresses, its runtime
NEWS_S: Final = 2.0  # a link that breaks is often the first sign of a pod's end, whose reason is on its way
PULLED_S: Final = 3.0  # a start that took longer may have had to fetch its image
ASK_S: Final = 2.0  # nobody waits longer for a sandbox that is there, only to know what it waited for
EVENTS_S: Final = 8.0  # a pod whose container does not run for so long: ask what its events say, and again each time


@dataclass(frozen=True, slots=True)
class Start:
    """What it takes to see pods start."""

    api: Api
    schedulers: Schedulers
    told: Events
    options: ClusterOptions
    links: Links
    notice: Notice = log_notice

    async def first_link(self, pod: Tracked) -> Connection:
        """The link to a pod that was just accepted.

        Raises:
            ImageNotFound, ImageInvalid, BadRequest, Unsupported: it can never start so.
            Capacity, NotReady, SandboxGone, DaemonFault, TransportLost: infrastructure, retriable.
        """
        linking = asyncio.create_task(self.links.connect(pod), name=f"link {pod.name}")
        failing = _Failing(self, pod)
        either: list[asyncio.Future[Any]] = [linking, failing.certain]
        try:
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if linking.done() and isinstance(linking.exception(), Infrastructure):
                await asyncio.wait([failing.certain], timeout=NEWS_S)
            if failing.certain.done():
                raise failing.certain.result()
            return linking.result()
        except BaseException:
            drop(linking)
            raise
        finally:
            failing.close()

    def judge(self, pod: Tracked, events: Sequence[EventSeen]) -> Trouble | None:
        """What speaks against its ever starting, by all that is known of it."""
        if pod.pod is None:
            return None
        found = trouble(pod.pod, events, daemon_image=self.options.daemon_image)
        if found is None and pod.ending is not None:
            found = Trouble(SandboxGone(f"it ended before it was usable: {pod.ending.detail}", why=pod.ending.why))
        return found

    async def events(self, pod: Tracked) -> Sequence[EventSeen]:
        """What events say of a pod that is stuck. Whoever may not read them waits longer, and no more.

        Not of one that is in a queue that moves: there may be thousands.
        """
        if pod.pod is None or "running" in pod.times_s:
            return ()
        if not pod.node and not (unnoticed(pod.pod) and self._silent_s(pod.pod, pod.seen_s) >= EVENTS_S):
            return ()
        return await self.told.warnings(pod.pod.metadata.uid)

    async def overlooked(self, pod: Tracked) -> SandlotError | None:
        """Why a pod will not start of which nobody has said anything for too long; None while somebody may.

        Asked of the API server before it is said: what it told may not have arrived here.
        """
        if pod.pod is None or not unnoticed(pod.pod):
            return None
        if pod.node and await has_node(self.api, pod.node) is False:
            return no_such_node(pod.node)
        if pod.node:
            silent_s, most_s = asyncio.get_running_loop().time() - pod.seen_s, START_PATIENCE_S
            found = not_taken(pod.node, silent_s)
        else:
            scheduler, silent_s = pod.pod.spec.scheduler_name, self._silent_s(pod.pod, pod.seen_s)
            found, most_s = not_scheduled(scheduler, silent_s), self._silence_s(scheduler)
        if silent_s >= most_s:
            return found if await self._still_unnoticed(pod.name) else None
        if silent_s >= EVENTS_S / 2:
            self.notice(f"{pod.name}: {found.message}; given up after {most_s:.0f} s")
        return None

    def _silent_s(self, pod: SeenPod, came_s: float) -> float:
        now, longest_s = asyncio.get_running_loop().time(), self.options.scheduler_silence_s
        return self.schedulers.silent_s(pod.spec.scheduler_name, came_s=came_s, now=now, longest_s=longest_s)

    def _silence_s(self, scheduler: str) -> float:
        """How long this scheduler may say nothing."""
        silence_s = self.options.scheduler_silence_s
        known = scheduler == USUAL or self.schedulers.heard_of(scheduler)
        return silence_s if known else min(silence_s, self.options.unschedulable_s)

    async def _still_unnoticed(self, name: str) -> bool:
        try:
            pod = await get_pod(self.api, self.options.namespace or self.api.credentials.namespace, name)
        except ApiError:
            return False
        return pod is not None and unnoticed(pod)

    async def pulls_s(self, pod: Tracked, start_s: float) -> float | None:
        """Of the seconds that a pod's start took, those of its images' pulls, where it took so long that there may be some.

        None: not known, since it is only asked for now and then.
        """
        if start_s < PULLED_S or pod.pod is None or self.told.rests:
            return None
        try:
            async with asyncio.timeout(ASK_S):
                events = await self.told.of(pod.pod.metadata.uid)
        except TimeoutError:
            return None
        return min(start_s, pulled_s(events)) if events else None

    def patience_s(self, patience: Patience) -> float:
        """How long a trouble of this sort may last."""
        options = self.options
        bounds_s: dict[Patience, float] = {
            "none": 0.0,
            "schedule": options.unschedulable_s,
            "pull": options.pull_patience_s,
            "start": START_PATIENCE_S,
        }
        return bounds_s[patience]


class _Failing:
    """Judges one pod with each change and when a patience ends; `certain` gets why it will not start, if it will not.

    No task: nearly all pods start, thousands at a time, and none of their events is worth waking one. (With events read in
    one pass and one task less for each dial, that was 8 % of a client's CPU: `sandlot bench client`.)
    """

    def __init__(self, start: Start, pod: Tracked) -> None:
        self._loop = asyncio.get_running_loop()
        self.certain: asyncio.Future[SandlotError] = self._loop.create_future()
        self._start, self._pod = start, pod
        self._since_s: dict[Patience, float] = {}
        self._events: Sequence[EventSeen] = ()
        self._asking: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._ask_in(EVENTS_S)
        pod.followers.append(self._look)
        self._look()

    def close(self) -> None:
        """Nobody wants to know any more."""
        self._pod.followers.remove(self._look)
        self._asks.cancel()
        for one in (self._timer, self._asking):
            if one is not None:
                one.cancel()

    def _look(self) -> None:
        if self.certain.done():
            return
        found = self._start.judge(self._pod, self._events)
        if found is not None:
            patience_s = self._start.patience_s(found.patience)
            if patience_s and found.patience not in self._since_s:
                self._start.notice(f"{self._pod.name}: {found.error.message}; given up after {patience_s:.0f} s")
            since_s = self._since_s.setdefault(found.patience, self._loop.time())
            self._decide_at(since_s + patience_s, found)
        elif self._pod.node:
            self._since_s.pop("schedule", None)

    def _decide_at(self, due_s: float, found: Trouble) -> None:
        """What is true at `due_s` is looked at again then: it may have passed."""
        if self._timer is not None:
            self._timer.cancel()
        if self._loop.time() >= due_s:
            self.certain.set_result(_about(self._pod.name, found.error))
        else:
            self._timer = self._loop.call_at(due_s, self._look)

    def _ask_in(self, seconds: float) -> None:
        self._asks = self._loop.call_later(seconds, self._ask)

    def _ask(self) -> None:
        self._asking = self._loop.create_task(self._ask_events(), name=f"ask for the events of {self._pod.name}")

    async def _ask_events(self) -> None:
        self._events = await self._start.events(self._pod)
        self._look()
        if self.certain.done():
            return
        overlooked = await self._start.overlooked(self._pod)
        if overlooked is None:
            self._ask_in(EVENTS_S)
        elif not self.certain.done():
            self.certain.set_result(_about(self._pod.name, overlooked))


def _about(name: str, error: SandlotError) -> SandlotError:
    """The same error, told of this sandbox."""
    told = copy(error)
    told.message = f"{name}: {error.message}"
    told.args = (told.message,)
    return told
