"""The sandboxes that a provider holds, and the one synchronous step by which it gives one up.

Whoever gives a sandbox up (its owner, a cancelled caller, the watch, a pool, the end of the provider) comes through
`discard`: the handle is told, the record goes to the janitor, and no `await` lies in between.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from sandlot.backends.base import Backend, Gone
from sandlot.connection import Connection
from sandlot.errors import Closed, Infrastructure, SandboxGone
from sandlot.janitor import Janitor
from sandlot.journal import Journal
from sandlot.lifecycle import TABLE, Record, State, Step
from sandlot.sandbox import Sandbox
from sandlot.spec import Owner


@dataclass(slots=True, eq=False)
class Custody:
    """Handles and creating tasks by record."""

    backend: Backend
    journal: Journal
    janitor: Janitor
    live: dict[Record, Sandbox] = field(default_factory=dict)
    making: dict[Record, asyncio.Task[Sandbox]] = field(default_factory=dict)
    departures: set[asyncio.Queue[Gone]] = field(default_factory=set)

    def handle(self, name: str, connection: Connection, owner: Owner) -> Sandbox:
        """A handle whose closing comes back here."""

        async def reopen() -> Connection:
            return await self.backend.reopen(name)

        async def on_close(grace_s: float) -> None:
            await self.closed(name, owner, grace_s)

        return Sandbox(connection, name=name, reopen=reopen, on_close=on_close)

    def discard(self, record: Record, *, why: str, grace_s: float = 0.0) -> None:
        """Give it up. Sync; harmless when that has been done before. `grace_s`: seconds from TERM to KILL."""
        if record.state is State.GONE:
            return
        self.janitor.discard(record, why=why, making=self.making.get(record), grace_s=grace_s)
        sandbox = self.live.pop(record, None)
        if sandbox is not None:
            sandbox.abort(Closed(f"{record.name} was deleted by this client ({why})"))

    async def closed(self, name: str, owner: Owner, grace_s: float) -> None:
        """The owner of a handle closed it: an attached sandbox ends with it, a leased one lives on."""
        record = self.journal.ledger.get(name)
        if record is None:
            return
        if owner == "leased" and not record.doomed:
            self.live.pop(record, None)
            return
        self.discard(record, why="released", grace_s=grace_s)
        await self.janitor.wait_gone([record])

    # --- what ends by itself ------------------------------------------------------------------------------------------
    async def watch(self, pause_s: float) -> None:
        """Follow the backend's word on sandboxes that end by themselves; a watch that breaks is opened again."""
        while True:
            try:
                async for gone in self.backend.watch():
                    self.vanished(gone)
            except Infrastructure as error:
                self.journal.events.append("watch.failed", data={"error": error.kind, "message": error.message})
            await asyncio.sleep(pause_s)
            await self._compare()

    async def _compare(self) -> None:
        """After a watch that broke: what the backend no longer lists has ended meanwhile."""
        held = [record for record in self.live if Step.VANISH in TABLE[record.state]]
        try:
            names = {info.name for info in await self.backend.list()}
        except Infrastructure as error:
            self.journal.events.append("watch.failed", data={"error": error.kind, "message": error.message})
            return
        for record in held:
            if record.name not in names:
                self.vanished(Gone(record.name, "unknown", "it ended while the watch was broken"))

    def vanished(self, gone: Gone) -> None:
        """One ended by itself: its handle says why from now on, and its remains are deleted."""
        record = self.journal.ledger.get(gone.name)
        if record is None or Step.VANISH not in TABLE[record.state]:
            return  # not ours, or its create is about to fail by itself, or it is being deleted
        record.why = gone.why
        self.journal.step(record, Step.VANISH, {"why": gone.why, "detail": gone.detail})
        sandbox = self.live.pop(record, None)
        if sandbox is not None:
            detail = f" ({gone.detail})" if gone.detail else ""
            sandbox.abort(SandboxGone(f"{gone.name} ended: {gone.why}{detail}", why=gone.why))
        self.discard(record, why=gone.why)
        for queue in self.departures:
            queue.put_nowait(gone)
