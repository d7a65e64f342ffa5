"""Makes sandboxes at the right pace, decides when one is usable, and owns every deletion.

Usable means: its first command has succeeded (`sandlot.readiness`). Nothing less is a sandbox.
"""

from __future__ import annotations

import asyncio
import random
import re
import secrets
import warnings
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import count
from types import MappingProxyType, TracebackType
from typing import Final

from sandlot.accounts import Closing, ProviderStatistics, Spread
from sandlot.admission import Turnstile
from sandlot.backends.base import Backend, Gone, Grant, SandboxInfo
from sandlot.custody import Custody
from sandlot.errors import BadRequest, CleanupFailed, Closed, SandlotError
from sandlot.events import EventLog, Scalar
from sandlot.interrupts import Begun, patience
from sandlot.janitor import Janitor, persist, wait_ended
from sandlot.journal import Journal
from sandlot.lifecycle import Record, State, Step
from sandlot.maker import Clocks, Limits, Maker
from sandlot.pacing import GateStatistics
from sandlot.policy import Settings, Tries
from sandlot.readiness import first_command
from sandlot.sandbox import Sandbox
from sandlot.spec import Owner, Spec

NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")  # a DNS label, so that it can also name a pod


class Provider:
    """Sandboxes from one backend. Use it as `async with`; it belongs to the event loop that entered it.

    Two providers side by side never touch each other's sandboxes: every name begins with the provider's own random mark.
    """

    def __init__(self, backend: Backend, settings: Settings | None = None, *, events: EventLog | None = None) -> None:
        self.backend: Final = backend
        self.settings: Final = settings or Settings()
        self.events: Final = events if events is not None else EventLog()
        self.mark: Final = secrets.token_hex(4)
        self.closing: Closing | None = None
        """What `aclose` found, once it has ended."""
        self._journal = Journal(self.events)
        self._janitor = Janitor(backend, self._journal, self.settings.deletion)
        self._custody = Custody(backend, self._journal, self._janitor)
        self._clocks = Clocks()
        self._numbers = count(1)
        self._maker: Maker | None = None
        self._watching: asyncio.Task[None] | None = None
        self._shutdown: asyncio.Task[Closing] | None = None

    # --- opening and closing ------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Bring the backend up. `async with` calls it.

        Raises:
            Unsupported: this machine cannot; the hint says what is missing.
            Closed: it was closed before.
        """
        if self._shutdown is not None:
            raise Closed("the provider is closed")
        if self._maker is None:
            await self.backend.start()
            self._maker = Maker(self._custody, Turnstile(self.settings.pace), self._clocks)
            self._watching = asyncio.create_task(self._custody.watch(self.settings.watch_pause_s), name="watch the backend")

    async def aclose(self) -> Closing:
        """Delete every attached sandbox and stop the backend. What was being created is deleted too.

        Cancelling this call does not stop the closing; calling again waits for the same end. Leased sandboxes live on.
        """
        if self._shutdown is None:
            self._shutdown = asyncio.create_task(Begun(self._close()), name="close the provider")
        with patience():
            await wait_ended([self._shutdown])
        return self._shutdown.result()

    async def __aenter__(self) -> Provider:
        await self.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        closing = await self.aclose()
        if closing.left:
            # Not raised: a fault of tearing down never replaces what the block achieved, nor its own error.
            warnings.warn(f"sandboxes are left: {closing}", ResourceWarning, stacklevel=2)

    async def _close(self) -> Closing:
        if self._maker is not None:
            self._maker.turnstile.close()
        ledger, kept = self._journal.ledger, []
        if len(ledger) >= self.settings.deletion.clear_from:
            self._janitor.clear()
        for record in ledger:
            if record.owner == "leased" and record.state is State.USABLE:
                kept.append(record)
                ledger.release(record)
            else:
                self._custody.discard(record, why="provider_closed")
        await persist(lambda: self._shut_down(kept))
        left = tuple(sorted(record.name for record in ledger))
        self.closing = Closing(ledger.created, ledger.gone, left, tuple(sorted(record.name for record in kept)))
        self.events.append("provider.closed", data={"created": ledger.created, "gone": ledger.gone, "left": len(left)})
        return self.closing

    async def _shut_down(self, kept: Sequence[Record]) -> None:
        """Every part may be done again: an event loop that ends interrupts this and finds it going on."""
        await self._janitor.wait_gone()
        if self._maker is not None:
            await self._sweep(kept)
        if self._watching is not None:
            self._watching.cancel()
            await wait_ended([self._watching])
        for record in kept:
            if record in self._custody.live:
                await self._custody.live.pop(record).aclose()
        await self.backend.aclose()

    async def _sweep(self, kept: Sequence[Record]) -> None:
        """The last look: what bears this provider's mark and is in no book arrived after its deletion was confirmed."""
        known = {record.name for record in (*self._journal.ledger, *kept)}
        try:
            infos = await self.backend.list()
        except Closed:
            return  # it has been done: the backend was being closed when this was interrupted
        except (SandlotError, OSError) as error:
            self.events.append("sweep.failed", data={"message": str(error)})
            return
        for info in infos:
            if info.name.startswith(f"{self.mark}-") and info.name not in known:
                self._custody.discard(self._adopt(info.name), why="arrived_late")
        await self._janitor.wait_gone()

    # --- making -------------------------------------------------------------------------------------------------------
    async def create(
        self,
        spec: Spec,
        *,
        owner: Owner = "attached",
        lease_s: float | None = None,
        name: str | None = None,
        create_timeout_s: float | None = None,
        ready_timeout_s: float | None = None,
    ) -> Sandbox:
        """A sandbox whose first command has succeeded.

        Args:
            owner: `attached` ends with this provider; `leased` lives on until its lease runs out.
            lease_s: seconds, with `leased`; whoever knows the name may renew it.
            name: chosen by the caller; None: unique, beginning with the provider's mark.
            create_timeout_s, ready_timeout_s: None: as in `settings`, where the two clocks are explained. Waiting for
                the pace is on neither.

        Cancelled at any point, the sandbox is deleted by the provider, whatever happens to the caller.

        Raises:
            BadRequest, Unsupported: the caller's or the machine's fault; not retriable.
            NotReady, SandboxGone, Capacity, Throttled, TransportLost, ...: infrastructure, after `settings.attempts`.
            Closed: the provider is closed, or was closed meanwhile.
        """
        maker, grant = self._require_open(), _grant(owner, lease_s)
        limits = Limits(
            self.settings.create_timeout_s if create_timeout_s is None else create_timeout_s,
            self.settings.ready_timeout_s if ready_timeout_s is None else ready_timeout_s,
        )
        now = asyncio.get_running_loop().time
        tries = Tries(self.settings, now())
        while True:
            record = self._intend(name, spec, owner)
            try:
                return await maker.attempt(record, grant, limits)
            except SandlotError as error:
                self._clocks.failures[error.kind] += 1
                self.events.append("create.failed", record.name, _failure(error, tries.failed + 1))
                pause_s = tries.pause_after(error, now())
                if pause_s is None or self._shutdown is not None:
                    raise
            if name is not None:
                await self._janitor.wait_gone([record])  # the same name again, so what bears it must be gone first
            await asyncio.sleep(pause_s * random.uniform(1.0, 1.5))
            self._require_open()

    async def attach(self, name: str, *, ready_timeout_s: float | None = None) -> Sandbox:
        """A handle on a leased sandbox that exists already, whoever made it. Closing the handle leaves it alive.

        Raises:
            BadRequest: this provider holds it already, or the name is none.
            SandboxGone: there is none of that name any more.
            TransportLost, NotReady: it could not be reached, or did not answer in time; it is left as it was.
        """
        self._require_open()
        known = self._journal.ledger.get(name)
        if known is not None and (known in self._custody.live or known.state is not State.USABLE):
            raise BadRequest(f"this provider holds {name} already", hint="use the handle that it gave")
        sandbox = self._custody.handle(name, await self.backend.reopen(name), "leased")
        try:
            await first_command(sandbox, self.settings.ready_timeout_s if ready_timeout_s is None else ready_timeout_s)
            self._custody.live[self._adopt(name)] = sandbox
        except BaseException:
            sandbox.abort(Closed("attaching did not succeed"))
            raise
        return sandbox

    # --- what exists --------------------------------------------------------------------------------------------------
    async def list(self) -> list[SandboxInfo]:
        """What the backend sees; where the sandbox is this provider's, with the state it has here."""
        ledger = self._journal.ledger
        infos = await self.backend.list()
        known = {info.name: record for info in infos if (record := ledger.get(info.name)) is not None}
        return [replace(info, state=known[info.name].state.value) if info.name in known else info for info in infos]

    async def renew(self, name: str, lease_s: float) -> None:
        """Let a leased sandbox live `lease_s` seconds from now.

        Raises:
            SandboxGone: its lease had run out.
        """
        await self.backend.renew(name, lease_s)

    async def delete(self, name: str) -> None:
        """Delete a sandbox, attached or leased, and wait until nothing of it is left. Cancelling does not stop the deletion.

        Raises:
            CleanupFailed: it could not be deleted; `aclose` tries again.
        """
        record = self._adopt(name)
        self._custody.discard(record, why="deleted")
        await self._janitor.wait_gone([record])
        if record.state is State.LEFT:
            raise CleanupFailed(f"{name} could not be deleted", left=[name])

    def statistics(self) -> ProviderStatistics:
        """Counts and times up to now."""
        ledger, clocks = self._journal.ledger, self._clocks
        return ProviderStatistics(
            states=ledger.states,
            created=ledger.created,
            gone=ledger.gone,
            gate=self._maker.turnstile.statistics() if self._maker is not None else GateStatistics(),
            queue=Spread.of(clocks.queue),
            create=Spread.of(clocks.create),
            parts=MappingProxyType({part: Spread.of(spans) for part, spans in clocks.parts.items()}),
            first_command=Spread.of(clocks.first_command),
            failures=MappingProxyType(dict(clocks.failures)),
        )

    def __repr__(self) -> str:
        ledger = self._journal.ledger
        states = ", ".join(f"{n} {state}" for state, n in ledger.states.items()) or "none"
        return f"<Provider {self.mark} on {self.backend.kind}: created {ledger.created}, gone {ledger.gone}; now {states}>"

    # --- for pools ----------------------------------------------------------------------------------------------------
    def note(self, sandbox: Sandbox, step: Step) -> bool:
        """Record what a pool does with a sandbox. False when it is doomed: it has ended or is being deleted."""
        record = self._journal.ledger.get(sandbox.name)
        if record is None or record.doomed:
            return False
        self._journal.step(record, step)
        return True

    def discard(self, sandbox: Sandbox, *, why: str) -> None:
        """Delete it, without waiting. Harmless when it is gone."""
        record = self._journal.ledger.get(sandbox.name)
        if record is not None:
            self._custody.discard(record, why=why)

    async def wait_gone(self, sandbox: Sandbox) -> None:
        """Until its deletion has ended, one way or the other. At once when there is none."""
        record = self._journal.ledger.get(sandbox.name)
        if record is not None:
            await self._janitor.wait_gone([record])

    async def departures(self) -> AsyncIterator[Gone]:
        """Sandboxes of this provider that end by themselves, from now on."""
        queue: asyncio.Queue[Gone] = asyncio.Queue()
        self._custody.departures.add(queue)
        try:
            while True:
                yield await queue.get()
        finally:
            self._custody.departures.discard(queue)

    # --- inside -------------------------------------------------------------------------------------------------------
    def _require_open(self) -> Maker:
        if self._maker is None or self._shutdown is not None:
            raise Closed("the provider is not open", hint="use it as: async with provider")
        return self._maker

    def _intend(self, name: str | None, spec: Spec, owner: Owner) -> Record:
        if name is not None and not NAME.fullmatch(name):
            raise BadRequest(f"{name!r} is no name for a sandbox", hint="use at most 63 of a-z, 0-9 and -, not - at the ends")
        try:
            return self._journal.intend(name if name is not None else f"{self.mark}-{next(self._numbers)}", spec, owner)
        except ValueError as error:
            raise BadRequest(str(error)) from error

    def _adopt(self, name: str) -> Record:
        """The record of a sandbox that exists, whoever made it."""
        record = self._journal.ledger.get(name)
        if record is None:
            record = self._intend(name, Spec(), "leased")
            self._journal.step(record, Step.ADOPT)
        return record


def _grant(owner: Owner, lease_s: float | None) -> Grant:
    if (owner == "leased") != (lease_s is not None):
        raise BadRequest("lease_s belongs to owner='leased', and only to it", hint="say both or neither")
    if lease_s is not None and not lease_s > 0:
        raise BadRequest(f"lease_s must be positive, got {lease_s}")
    return Grant(owner, lease_s)


def _failure(error: SandlotError, attempt: int) -> dict[str, Scalar]:
    return {"error": error.kind, "message": error.message, "retriable": error.retriable, "attempt": attempt}
