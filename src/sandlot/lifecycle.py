"""The life of one sandbox as a table, and the only place where a state changes.

    intended ─► creating ─► created ─► usable ◄──────────────┐
        │           │          │         │  ▲                │ (a sandbox found by name starts here)
        │           │          │         ▼  │                │
        │           │          │       resetting ◄─► idle ─► leased
        │           │          │         │           │         │
        │           └──────────┴────┬────┴───────────┴─────────┘
        ▼                           ▼        once usable, any ─► lost (it ended by itself)
       gone ◄─────────────────── deleting ◄────────────────────────┘
                                    │  ▲
                                    ▼  │
                                    left (deleting was given up: it may still exist)

A name is `intended` before anything is asked of a backend, so whatever an answer leaves open can be deleted by that
name. `gone` is entered only when the backend has confirmed that nothing is left, or when nothing was ever asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from sandlot.spec import Owner, Spec


class State(StrEnum):
    """Where a sandbox is in its life. The values are what events and listings show."""

    INTENDED = "intended"
    CREATING = "creating"
    CREATED = "created"
    USABLE = "usable"
    LEASED = "leased"
    RESETTING = "resetting"
    IDLE = "idle"
    LOST = "lost"
    DELETING = "deleting"
    LEFT = "left"
    GONE = "gone"


class Step(StrEnum):
    """What happened, or what was decided."""

    ASK = "ask"  # the create call is about to be made
    REFUSE = "refuse"  # the name belongs to someone else's sandbox: nothing was made, nothing may be deleted
    OPEN = "open"  # the daemon has said hello
    ANSWER = "answer"  # the first command has succeeded
    ADOPT = "adopt"  # found by name, and it answered
    LEASE = "lease"  # handed to someone by a pool
    RESET = "reset"  # a reset has begun
    RETURN = "return"  # clean again, still with whom it was
    PARK = "park"  # into the pool's stock
    VANISH = "vanish"  # the backend reported that it ended by itself
    DISCARD = "discard"  # it shall be deleted
    CONFIRM = "confirm"  # the backend confirmed that nothing is left
    GIVE_UP = "give_up"  # deleting failed for good


_UNBORN: Final = {Step.DISCARD: State.DELETING}
_ALIVE: Final = {Step.VANISH: State.LOST, Step.DISCARD: State.DELETING}

TABLE: Final[Mapping[State, Mapping[Step, State]]] = {
    State.INTENDED: {Step.ASK: State.CREATING, Step.ADOPT: State.USABLE, Step.DISCARD: State.GONE},
    State.CREATING: {Step.OPEN: State.CREATED, Step.REFUSE: State.GONE, **_UNBORN},
    State.CREATED: {Step.ANSWER: State.USABLE, **_UNBORN},
    State.USABLE: {Step.LEASE: State.LEASED, Step.PARK: State.IDLE, Step.RESET: State.RESETTING, **_ALIVE},
    State.LEASED: {Step.RESET: State.RESETTING, **_ALIVE},
    State.RESETTING: {Step.RETURN: State.USABLE, Step.PARK: State.IDLE, **_ALIVE},
    State.IDLE: {Step.LEASE: State.LEASED, **_ALIVE},
    State.LOST: {Step.DISCARD: State.DELETING},
    State.DELETING: {Step.CONFIRM: State.GONE, Step.GIVE_UP: State.LEFT},
    State.LEFT: {Step.DISCARD: State.DELETING},
    State.GONE: {},
}

EXISTING: Final = frozenset(State) - {State.INTENDED, State.GONE}
"""States in which something of the sandbox may exist outside this process."""

DOOMED: Final = frozenset({State.LOST, State.DELETING, State.LEFT, State.GONE})
"""States from which no sandbox comes back."""


class ImpossibleStep(RuntimeError):
    """The program tried a step that the table does not have: a fault of Sandlot itself, never of a caller."""

    def __init__(self, name: str, state: State, step: Step) -> None:
        super().__init__(f"{name}: no step {step.value!r} from state {state.value!r}")


@dataclass(slots=True, eq=False)
class Record:
    """One sandbox as its provider knows it. Only `Ledger.step` changes `state`."""

    name: str
    spec: Spec
    owner: Owner
    state: State = State.INTENDED
    since_s: float = 0.0
    """Monotonic time of the last change."""
    why: str = ""
    """Why it ended, once it has (the closed set of `SandboxGone.why`)."""

    @property
    def doomed(self) -> bool:
        return self.state in DOOMED


@dataclass(slots=True)
class Ledger:
    """Every sandbox of one provider by name, and how many were made and are gone. Not thread-safe; holds no clock."""

    _records: dict[str, Record] = field(default_factory=dict)
    _states: Counter[State] = field(default_factory=Counter)
    created: int = 0
    """Create calls made, each of which may have made something exist, and sandboxes taken over by name."""
    gone: int = 0
    """Of those, confirmed to be no more."""

    def intend(self, name: str, spec: Spec, owner: Owner, now: float) -> Record:
        """Record a name before anything is asked for it.

        Raises:
            ValueError: the name is in use.
        """
        if name in self._records:
            raise ValueError(f"a sandbox named {name!r} is already known")
        record = self._records[name] = Record(name, spec, owner, since_s=now)
        self._states[State.INTENDED] += 1
        return record

    def step(self, record: Record, step: Step, now: float) -> State:
        """Take one step, and forget the record when it is gone.

        Raises:
            ImpossibleStep: the table has no such step.
        """
        before = record.state
        after = TABLE[before].get(step)
        if after is None:
            raise ImpossibleStep(record.name, before, step)
        record.state, record.since_s = after, now
        self._states[before] -= 1
        if step in (Step.ASK, Step.ADOPT):
            self.created += 1
        if after is State.GONE:
            del self._records[record.name]
            self.gone += before is not State.INTENDED
        else:
            self._states[after] += 1
        return after

    def get(self, name: str) -> Record | None:
        return self._records.get(name)

    def release(self, record: Record) -> None:
        """Forget a sandbox that lives on without us: a leased one whose provider closes."""
        if self._records.pop(record.name, None) is not None:
            self._states[record.state] -= 1

    def __iter__(self) -> Iterator[Record]:
        return iter(list(self._records.values()))

    def __len__(self) -> int:
        return len(self._records)

    @property
    def states(self) -> Mapping[State, int]:
        """How many are in each state now, states with none left out."""
        return MappingProxyType({state: n for state, n in self._states.items() if n})
