"""The table of states: what it allows, what it refuses, and that the counts follow."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.lifecycle import DOOMED, EXISTING, TABLE, ImpossibleStep, Ledger, Record, State, Step
from sandlot.spec import Spec


def record_in(ledger: Ledger, *steps: Step, name: str = "a") -> Record:
    record = ledger.intend(name, Spec(), "attached", 0.0)
    for step in steps:
        ledger.step(record, step, 1.0)
    return record


def test_the_table_names_every_state() -> None:
    """No state without a row, no row without a way in."""
    assert set(TABLE) == set(State)
    entered = {after for row in TABLE.values() for after in row.values()}
    assert entered | {State.INTENDED} == set(State)


def test_every_step_is_used() -> None:
    """A step that no row has could never be taken."""
    assert {step for row in TABLE.values() for step in row} == set(Step)


def test_whatever_may_exist_can_be_deleted() -> None:
    """From every state but `deleting` itself there is one step to deletion."""
    for state in EXISTING - {State.DELETING}:
        assert TABLE[state][Step.DISCARD] is State.DELETING


def test_gone_is_reached_only_by_confirmation_or_before_asking() -> None:
    """Nothing that may exist is called gone without the backend's word."""
    ways = {(state, step) for state, row in TABLE.items() for step, after in row.items() if after is State.GONE}
    assert ways == {(State.DELETING, Step.CONFIRM), (State.INTENDED, Step.DISCARD), (State.CREATING, Step.REFUSE)}


def test_nobody_comes_back_from_doom() -> None:
    """No step leads from a doomed state to a living one."""
    for state in DOOMED:
        assert set(TABLE[state].values()) <= DOOMED


def test_a_step_the_table_lacks_is_refused() -> None:
    """The record stays as it was, and the message names sandbox, state and step."""
    ledger = Ledger()
    record = record_in(ledger, Step.ASK)
    with pytest.raises(ImpossibleStep, match="a: no step 'lease' from state 'creating'"):
        ledger.step(record, Step.LEASE, 2.0)
    assert (record.state, record.since_s) == (State.CREATING, 1.0)


def test_a_name_is_known_once() -> None:
    """Two sandboxes of one provider never share a name while either is known."""
    ledger = Ledger()
    record = record_in(ledger, Step.ASK, Step.DISCARD)
    with pytest.raises(ValueError, match="already known"):
        ledger.intend("a", Spec(), "attached", 0.0)
    ledger.step(record, Step.CONFIRM, 1.0)
    assert ledger.get("a") is None
    ledger.intend("a", Spec(), "attached", 0.0)


def test_what_was_never_asked_for_counts_neither_as_created_nor_as_gone() -> None:
    """A create that was withdrawn from the queue leaves no trace in the counts."""
    ledger = Ledger()
    record_in(ledger, Step.DISCARD)
    assert (ledger.created, ledger.gone, len(ledger)) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(Step)), max_size=80))
def test_counts_follow_any_walk(walk: list[tuple[int, Step]]) -> None:
    """After any steps, by any names: created = gone + what may exist, and the states add up."""
    ledger = Ledger()
    for number, step in walk:
        record = ledger.get(str(number)) or ledger.intend(str(number), Spec(), "attached", 0.0)
        if step in TABLE[record.state]:
            ledger.step(record, step, 0.0)
        existing = sum(record.state in EXISTING for record in ledger)
        assert ledger.created == ledger.gone + existing
        assert dict(ledger.states) == Counter(record.state for record in ledger)
