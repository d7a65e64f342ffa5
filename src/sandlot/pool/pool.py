"""The async side of the pool: carries out what the desk decides, in tasks of its own, and keeps callers apart from them."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Coroutine, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import count
from types import MappingProxyType, TracebackType
from typing import Final

from sandlot.accounts import Spread
from sandlot.errors import Closed, SandlotError
from sandlot.interrupts import Begun
from sandlot.janitor import wait_ended
from sandlot.lifecycle import Step
from sandlot.pool.demand import Demand
from sandlot.pool.desk import Desk, Origin, Shelf
from sandlot.pool.figures import Figures, PoolStatistics
from sandlot.pool.lent import Lent
from sandlot.pool.room import PoolLimits
from sandlot.provider import Provider
from sandlot.reset import reset
from sandlot.sandbox import Sandbox
from sandlot.spec import Spec
from sandlot.strategies import Holding, Lease, Strategy, View, none

WINDOW: Final = 512  # coming requests that a strategy sees
REPLAN_S: Final = 0.05  # a strategy is asked at most this often: it looks seconds ahead
LOOK_AGAIN_S: Final = 0.5  # and this often while requests wait for what is in use: it may be so longer than was thought
CHECK_S: Final = 5.0  # what a parked sandbox may take to answer a ping before it counts as dead
RESET_S: Final = 60.0
LONGEST_PAUSE_S: Final = 60.0  # between creates for stock of a spec that keeps failing


@dataclass(slots=True, eq=False)
class _Member:
    """A sandbox of this pool."""

    sandbox: Sandbox
    spec: Spec
    leases: int = 0
    since_s: float = 0.0


@dataclass(slots=True)
class _Backoff:
    """When a spec whose creates for stock fail may be tried again."""

    pause_s: float = 1.0
    until_s: float = 0.0


class Pool:
    """Leases sandboxes, and keeps some warm as its strategy says. Use it as `async with`, inside its provider's block.

    Between two leases a sandbox is reset in place and verified; one that is not clean, or has ended, is replaced.
    Several pools may share a provider: each looks after its own sandboxes only.
    """

    def __init__(self, provider: Provider, *, strategy: Strategy = none, limits: PoolLimits | None = None) -> None:
        self.provider: Final = provider
        self.strategy: Final = strategy
        self.limits: Final = limits or PoolLimits()
        self._desk = Desk(self.limits)
        self._demand = Demand()
        self._figures = Figures()
        self._members: dict[str, _Member] = {}
        self._leases: OrderedDict[str, _Member] = OrderedDict()
        self._tickets = count(1)
        self._waiters: dict[int, asyncio.Future[_Member]] = {}
        self._asked_s: dict[int, float] = {}
        """When each request that waits was made."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._backoff: dict[Spec, _Backoff] = {}
        self._replan = asyncio.Event()
        self._closed = False

    # --- opening and closing ------------------------------------------------------------------------------------------
    async def __aenter__(self) -> Pool:
        self._own(self._plan_ahead())
        self._own(self._heed_departures())
        self._replan.set()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Delete every sandbox of this pool, those in use too; requests that wait end with `Closed`.

        Returns when the deletions have ended; cancelling it does not stop them, since the provider owns them. Idempotent.
        """
        self._closed = True
        for waiter in self._waiters.values():
            if not waiter.done():
                waiter.set_exception(Closed("the pool was closed while this request waited"))
                waiter.exception()
        self._waiters.clear()
        for task in self._tasks:
            task.cancel()
        members = list(self._members.values())
        for member in members:
            self.provider.discard(member.sandbox, why="pool_closed")
        await wait_ended(self._tasks)
        for member in members:
            await self.provider.wait_gone(member.sandbox)

    # --- leasing ------------------------------------------------------------------------------------------------------
    def expect(self, specs: Iterable[Spec]) -> None:
        """Announce requests to come, in order, after those announced before; each `lease` fulfils the first of its spec."""
        self._demand.expect(specs)
        self._replan.set()

    @asynccontextmanager
    async def lease(self, spec: Spec) -> AsyncIterator[Sandbox]:
        """A clean, living sandbox for the length of the block. Waiting requests are served in order.

        Leaving the block never waits: the sandbox is reset or deleted afterwards. Its handle is of no use from then on.

        Raises:
            BadRequest, Unsupported: nothing of this spec can be created; not retriable.
            Infrastructure errors: creating one failed after the provider's attempts; retriable.
            Closed: the pool is closed, or was closed meanwhile.
        """
        member = await self._acquire(spec)
        handle = Lent(member.sandbox)
        try:
            yield handle
        finally:
            handle.end()
            self._give_back(member)

    def statistics(self) -> PoolStatistics:
        """Counts and times up to now."""
        figures = self._figures
        return PoolStatistics(
            created=figures.created,
            reused=figures.reused,
            reset=figures.reset,
            discarded=MappingProxyType(dict(figures.discarded)),
            leases=figures.leases,
            waiting=self._desk.waiting,
            **self._desk.counts,
            wait=Spread.of(figures.waits),
            reset_time=Spread.of(figures.resets),
        )

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {place}" for place, n in self._desk.counts.items() if n) or "empty"
        return f"<Pool of {self.limits.sandboxes}: {counts}; {self._desk.waiting} waiting; {self._figures.leases} leases begun>"

    async def _acquire(self, spec: Spec) -> _Member:
        if self._closed:
            raise Closed("the pool is closed")
        asked_s, ticket = self._now(), next(self._tickets)
        self._desk.ask(ticket, spec)
        self._demand.take(spec)
        self._asked_s[ticket] = asked_s
        try:
            while True:
                member = await self._wait(ticket, spec)
                if await self._answers(member):
                    break
                self._desk.lost(member.sandbox.name)
                self._drop(member, "dead")
                self._desk.ask_again(ticket, spec)
        finally:
            del self._asked_s[ticket]
        member.leases += 1
        member.since_s = self._now()
        self._leases[member.sandbox.name] = member
        self._figures.leases += 1
        self._figures.reused += member.leases > 1
        self._figures.waits.append(member.since_s - asked_s)
        return member

    async def _wait(self, ticket: int, spec: Spec) -> _Member:
        """Until the desk gives this request a sandbox. Cancelled at any moment, nothing of the request remains."""
        waiter: asyncio.Future[_Member]
        waiter = self._waiters[ticket] = asyncio.get_running_loop().create_future()
        self._act()
        try:
            return await waiter
        except asyncio.CancelledError:
            if self._waiters.pop(ticket, None) is not None:
                self._desk.leave(ticket, spec)
            elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._desk.handed_back(waiter.result().sandbox.name)
            self._act()
            raise

    async def _answers(self, member: _Member) -> bool:
        """A parked sandbox is asked before it is handed out: a link can be dead without having been told."""
        if not self.provider.note(member.sandbox, Step.LEASE):
            return False
        try:
            async with asyncio.timeout(CHECK_S):
                await member.sandbox.ping()
        except (SandlotError, TimeoutError):
            return False
        except asyncio.CancelledError:
            self._give_back(member)
            raise
        return True

    def _give_back(self, member: _Member) -> None:
        """A lease has ended, or never began. Sync, so that no cancellation can come in between."""
        name = member.sandbox.name
        if self._leases.pop(name, None) is not None:
            self._figures.lease.add(self._now() - member.since_s)
        if self._closed:
            return
        if self._desk.returned(name, member.leases, wanted=self._would_keep(member.spec)):
            self._own(self._reset(member))
        else:
            worn_out = self.limits.leases_each is not None and member.leases >= self.limits.leases_each
            self._drop(member, "worn_out" if worn_out else "made_way")
        self._act()

    # --- carrying out -------------------------------------------------------------------------------------------------
    def _act(self) -> None:
        """Something has changed: do what the desk decides now, and have the strategy think again."""
        if not self._closed:
            self._carry_out()
            self._replan.set()

    def _carry_out(self) -> None:
        decisions = self._desk.decide()
        for ticket, name in decisions.give:
            waiter = self._waiters.pop(ticket)
            if waiter.done():  # cancelled in this very moment, and about to say so
                self._desk.handed_back(name)
            else:
                waiter.set_result(self._members[name])
        for spec, origin in decisions.create:
            self._own(self._create(spec, origin))
        for name in decisions.discard:
            self._drop(self._members[name], "made_way")

    async def _create(self, spec: Spec, origin: Origin) -> None:
        began_s = self._now()
        try:
            sandbox = await self.provider.create(spec)
        except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to the request that waits for this create
            self._fail(spec, origin, error)
            return
        self._backoff.pop(spec, None)
        self._figures.create_took(spec, self._now() - began_s)
        self._park(_Member(sandbox, spec), origin)

    def _park(self, member: _Member, origin: Origin) -> None:
        name = member.sandbox.name
        self._members[name] = member
        if self.provider.note(member.sandbox, Step.PARK):
            self._desk.arrived(name, member.spec, origin)
        else:
            self._desk.spoiled(name, member.spec, origin)
            self._drop(member, "dead")
        self._act()

    def _fail(self, spec: Spec, origin: Origin, error: Exception) -> None:
        ticket = self._desk.failed(spec, origin)
        if ticket is not None and (waiter := self._waiters.pop(ticket, None)) is not None and not waiter.done():
            waiter.set_exception(error)
        backoff = self._backoff.setdefault(spec, _Backoff())
        backoff.until_s = self._now() + backoff.pause_s
        backoff.pause_s = min(LONGEST_PAUSE_S, backoff.pause_s * 2)
        self._act()

    async def _reset(self, member: _Member) -> None:
        began_s = self._now()
        dirty: tuple[str, ...] = ("dead",)
        if self.provider.note(member.sandbox, Step.RESET):
            verdict = await reset(member.sandbox, timeout_s=RESET_S)
            dirty = verdict.why
            if verdict.clean:
                self._figures.reset_took(member.spec, self._now() - began_s)
                self._park(member, "reset")
                return
        self._figures.reset_failed(member.spec)
        self._desk.spoiled(member.sandbox.name, member.spec, "reset")
        self._drop(member, f"dirty: {', '.join(dirty)}")
        self._act()

    def _drop(self, member: _Member, why: str) -> None:
        """Have the provider delete it; the desk hears when it is gone."""
        self._figures.discarded[why] += 1
        self.provider.discard(member.sandbox, why=why)
        self._own(self._see_off(member))

    async def _see_off(self, member: _Member) -> None:
        await self.provider.wait_gone(member.sandbox)
        del self._members[member.sandbox.name]
        self._desk.departed(member.sandbox.name)
        self._act()

    async def _heed_departures(self) -> None:
        async for gone in self.provider.departures():
            if self._desk.died(gone.name):
                self._drop(self._members[gone.name], f"died: {gone.why}")
                self._act()

    def _own(self, work: Coroutine[None, None, None]) -> None:
        """Run this in a task of the pool's. A fault of ours in it, or in a strategy, goes where asyncio reports such."""
        task = asyncio.get_running_loop().create_task(Begun(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _now(self) -> float:
        return asyncio.get_running_loop().time()

    # --- planning -----------------------------------------------------------------------------------------------------
    async def _plan_ahead(self) -> None:
        """Ask the strategy after every change, at most every 50 ms, and again when a failed spec may be tried again."""
        while True:
            await self._replan.wait()
            self._replan.clear()
            plan = self.strategy(self._view())
            now = self._now()
            later = {spec: self._backoff[spec].until_s for spec in plan.warm if spec in self._backoff}
            self._desk.follow(replace(plan, warm=tuple(spec for spec in plan.warm if later.get(spec, now) <= now)))
            self._carry_out()
            pauses = [until_s - now for until_s in later.values() if until_s > now]
            pauses += [LOOK_AGAIN_S] if self._desk.patient else []
            if pauses:
                asyncio.get_running_loop().call_later(min(pauses), self._replan.set)
            await asyncio.sleep(REPLAN_S)

    def _would_keep(self, spec: Spec) -> bool:
        """Whether the strategy would let one more of this spec stay parked: what it would evict is not worth a reset."""
        return spec not in self.strategy(self._view(one_more=spec)).evict

    def _view(self, one_more: Spec | None = None) -> View:
        figures, shelves = self._figures, self._desk.shelves
        expected = self._demand.window(WINDOW)
        holdings = {}
        for spec in {*shelves, *expected, *([] if one_more is None else [one_more])}:
            shelf = shelves.get(spec)
            holdings[spec] = self._holding(spec, shelf or Shelf(), int(spec == one_more))
        return View(
            now_s=self._now(),
            holdings=holdings,
            leases=tuple(Lease(member.spec, member.since_s) for member in self._leases.values()),
            expected=expected,
            remaining=self._demand.remaining,
            lease_s=figures.lease.value_s,
            slots=self.limits.sandboxes,
            slots_free=self._desk.slots_free,
            memory_free=self._desk.memory_free,
        )

    def _holding(self, spec: Spec, shelf: Shelf, more: int) -> Holding:
        first = next(iter(shelf.waiting), None)
        return Holding(
            idle=len(shelf.idle) + more,
            coming=shelf.surplus,
            promised=shelf.coming - shelf.surplus,
            waiting=len(shelf.waiting),
            waits_s=0.0 if first is None else self._now() - self._asked_s[first],
            create_s=self._figures.create_s(spec),
            reset_s=None if self.limits.leases_each == 1 else self._figures.reset_s(spec),
        )
