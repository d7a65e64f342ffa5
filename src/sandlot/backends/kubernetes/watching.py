"""One watch for all pods of a client: it is resumed where it broke, begun anew where that is too long ago, and never given up.

`Roster` is what is known of the pods that this client made, and knows nothing of HTTP; `PodWatch` feeds it. Only names
that were expected are remembered, and only until they are forgotten: nothing grows with the life of the client.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from sandlot.backends.base import Gone
from sandlot.backends.kubernetes import status
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.api_errors import ApiExpired
from sandlot.backends.kubernetes.objects import Named, PodEvent, PodList, SeenPod, Status, WatchEvent
from sandlot.backends.kubernetes.status import Ending
from sandlot.backends.kubernetes.unnoticed import GATED, Schedulers
from sandlot.errors import ProtocolViolation, SandlotError

_log = logging.getLogger(__name__)

PAGE: Final = 500  # objects of one answer: some 4 MB of pods
FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 5.0
_POD_EVENT: Final = msgspec.json.Decoder(PodEvent)
_EVENT: Final = msgspec.json.Decoder(WatchEvent)
_NAMED: Final = msgspec.json.Decoder(Named)
_STATUS: Final = msgspec.json.Decoder(Status)


@dataclass(slots=True, eq=False)
class Tracked:
    """What is known of one pod of this client."""

    name: str
    pod: SeenPod | None = None
    """As last seen; None before that."""
    ending: Ending | None = None
    """Why it ended by itself, or that it was deleted."""
    absent: bool = False
    """The API server has it no more."""
    deleting: bool = False
    """This client wants it gone: its end is no news."""
    usable: bool = False
    """Its create has succeeded: from now on its end is told to watchers."""
    seen_s: float = 0.0
    """When it was first seen, on the loop's clock."""
    times_s: dict[str, float] = field(default_factory=dict)
    """When something was first seen, on the loop's clock: `scheduled`, `running`."""
    leased: bool = False
    """It outlives this client."""
    followers: list[Callable[[], None]] = field(default_factory=list)
    """Called with each change."""
    _waiting: dict[asyncio.Future[None], Callable[[Tracked], bool]] = field(default_factory=dict)

    @property
    def node(self) -> str | None:
        """Where it was put, once that is known."""
        return None if self.pod is None else self.pod.spec.node_name

    def changed(self) -> None:
        """Wake whoever waits for what is true now, and nobody else."""
        for waiter, condition in self._waiting.items():
            if not waiter.done() and condition(self):
                waiter.set_result(None)
        for follow in tuple(self.followers):
            follow()

    async def wait(self, condition: Callable[[Tracked], bool]) -> None:
        """Until the condition holds, or has held for a moment; it is asked again with each change."""
        if condition(self):
            return
        waiter = asyncio.get_running_loop().create_future()
        self._waiting[waiter] = condition
        try:
            await waiter
        finally:
            del self._waiting[waiter]


class Roster:
    """The pods of one client, by name."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.schedulers: Final = Schedulers()
        self._clock = clock
        self._tracked: dict[str, Tracked] = {}
        self._listeners: set[asyncio.Queue[Gone | None]] = set()

    def __len__(self) -> int:
        return len(self._tracked)

    def expect(self, name: str) -> Tracked:
        """From now on, remember what is seen of this name."""
        return self._tracked.setdefault(name, Tracked(name))

    def get(self, name: str) -> Tracked | None:
        return self._tracked.get(name)

    def forget(self, name: str) -> None:
        """It is gone and nobody will ask for it any more."""
        self._tracked.pop(name, None)

    def seen(self, pod: SeenPod, *, deleted: bool = False) -> None:
        """The API server told of a pod."""
        one = self._tracked.get(pod.metadata.name)
        if one is None or (one.pod is not None and one.absent and one.pod.metadata.uid == pod.metadata.uid):
            return
        if one.pod is None:
            one.seen_s = self._clock()
        one.pod, one.absent = pod, deleted
        if "scheduled" not in one.times_s:
            self._note_place(one, pod)
        if any(each.state.running is not None for each in pod.status.container_statuses or ()):
            one.times_s.setdefault("running", self._clock())
        self._end(one, status.deleted(pod) if deleted else status.ended(pod))

    def _note_place(self, one: Tracked, pod: SeenPod) -> None:
        """What a scheduler has said, if it has. Where a spec names its node itself none is asked, and nothing is said of it."""
        now = self._clock()
        if pod.spec.node_name:
            one.times_s["scheduled"] = now
        if any(each.type == "PodScheduled" and each.reason != GATED for each in pod.status.conditions or ()):
            self.schedulers.decided(pod.spec.scheduler_name, came_s=one.seen_s, now=now)

    def resumed(self) -> None:
        """From now on it is told again what happens, after a time in which it was not."""
        self.schedulers.resumed(self._clock())

    def present(self, names: Iterable[str]) -> None:
        """These are all there are: what was seen before and is not among them went while nobody watched."""
        there = set(names)
        for one in list(self._tracked.values()):
            if one.pod is not None and one.name not in there and not one.absent:
                one.absent = True
                self._end(one, status.deleted(one.pod))

    def doom_attached(self) -> None:
        """This client is about to delete all that is attached: none of those ends is news."""
        for one in self._tracked.values():
            one.deleting = one.deleting or not one.leased

    def fence(self) -> None:
        """This client was taken for dead: others have deleted, or are about to delete, every attached pod that it had."""
        for one in list(self._tracked.values()):
            if one.pod is not None and not one.leased:
                self._end(one, Ending("lease_expired", "this client did not renew its lease in time and was taken for dead"))

    def _end(self, one: Tracked, ending: Ending | None) -> None:
        if ending is not None and one.ending is None:
            one.ending = ending
            if one.usable and not one.deleting:
                for listener in self._listeners:
                    listener.put_nowait(Gone(one.name, ending.why, ending.detail))
        one.changed()

    async def departures(self) -> AsyncIterator[Gone]:
        """Usable sandboxes that end without this client's doing, from now on until `close`."""
        queue: asyncio.Queue[Gone | None] = asyncio.Queue()
        self._listeners.add(queue)
        try:
            while (gone := await queue.get()) is not None:
                yield gone
        finally:
            self._listeners.discard(queue)

    def close(self) -> None:
        """End `departures`."""
        for listener in self._listeners:
            listener.put_nowait(None)


class PodWatch:
    """Feeds a roster from the API server, as long as `run` runs."""

    def __init__(self, api: Api, path: str, selector: str, roster: Roster) -> None:
        self.roster: Final = roster
        self._api, self._path, self._selector = api, path, selector
        self._version: str | None = None
        self._pause_s = FIRST_PAUSE_S
        self.breaks = 0
        """How often it broke so far."""
        self.lists = 0
        """How often everything was listed: once, and after each break that lasted too long."""

    async def run(self) -> None:
        """Never returns; cancel it."""
        while True:
            try:
                if self._version is None:
                    await self._list()
                await self._follow()
            except ApiExpired:
                self._version = None
            except SandlotError as error:
                # Even a refusal may be put right (rights given back, a token renewed): a client without eyes leaks.
                self.breaks += 1
                _log.warning("the watch of the cluster broke and is opened again: %s", error)
                await asyncio.sleep(self._pause_s * random.uniform(0.5, 1.0))
                self.roster.resumed()
                self._pause_s = min(LONGEST_PAUSE_S, self._pause_s * 2)

    async def _list(self) -> None:
        names: list[str] = []
        query = {"labelSelector": self._selector, "limit": str(PAGE)}
        while True:
            page = await self._api.get(self._path, PodList, query=query)
            for pod in page.items:
                names.append(pod.metadata.name)
                self.roster.seen(pod)
            if not page.metadata.continue_:
                break
            query["continue"] = page.metadata.continue_
        self.roster.present(names)
        self._version = page.metadata.resource_version
        self.lists += 1

    async def _follow(self) -> None:
        """Until the server ends the watch, which it does every few minutes."""
        query = {"labelSelector": self._selector, "resourceVersion": self._version or ""}
        async with self._api.watch(self._path, query) as lines:
            async for batch in lines:
                self._pause_s = FIRST_PAUSE_S
                for line in batch:
                    self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            event = _POD_EVENT.decode(line)
        except msgspec.DecodeError as error:
            self._take_other(line, error)
            return
        self.roster.seen(event.object, deleted=event.type == "DELETED")
        self._version = event.object.metadata.resource_version

    def _take_other(self, line: bytes, why: msgspec.DecodeError) -> None:
        """What tells of no pod, for the reason given."""
        try:
            event = _EVENT.decode(line)
            if event.type == "BOOKMARK":
                self._version = _NAMED.decode(event.object).metadata.resource_version
            elif event.type == "ERROR":
                _raise(_STATUS.decode(event.object))
            else:
                raise why
        except msgspec.DecodeError as error:
            raise ProtocolViolation(f"the API server's watch is not understood: {error}") from error


def _raise(said: Status) -> None:
    if said.code == 410 or said.reason == "Expired":
        raise ApiExpired(said.message or "the watch is too old to go on")
    raise ProtocolViolation(f"the watch ended with: {said.message or said.reason}")
