"""One provider's ledger and its event log, moved together: no state changes without an event, no event without a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandlot.events import EventLog, Scalar
from sandlot.lifecycle import Ledger, Record, State, Step
from sandlot.spec import Owner, Spec


@dataclass(slots=True, eq=False)
class Journal:
    """Writes each step into the ledger first and the log second."""

    events: EventLog
    ledger: Ledger = field(default_factory=Ledger)

    def intend(self, name: str, spec: Spec, owner: Owner) -> Record:
        """Record a name before anything is asked for it."""
        record = self.ledger.intend(name, spec, owner, self.events.clock())
        self.events.append("sandbox.intended", name, {"image": spec.image, "owner": owner})
        return record

    def step(self, record: Record, step: Step, data: Mapping[str, Scalar] | None = None) -> State:
        """Take one step, and log the state it led to."""
        after = self.ledger.step(record, step, self.events.clock())
        self.events.append(f"sandbox.{after}", record.name, data or {})
        return after
