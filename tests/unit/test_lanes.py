"""The queue by kind: in order, but what only fails holds nobody up."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.lanes import AILING_AFTER, AILING_IN_FLIGHT, AILING_KINDS, Lanes


def filled(*kinds: str) -> Lanes:
    lanes = Lanes()
    for ticket, kind in enumerate(kinds):
        lanes.add(ticket, kind)
    return lanes


def take_all(lanes: Lanes) -> list[int]:
    taken = []
    while (one := lanes.take()) is not None:
        taken.append(one[0])
    return taken


def make_ailing(lanes: Lanes, kind: str, how: str = "failed") -> None:
    for ticket in range(-AILING_AFTER, 0):
        lanes.add(ticket, kind)
        assert lanes.take() == (ticket, kind)
        lanes.ended(kind, how)


def test_first_come_first_served_whatever_the_kind() -> None:
    """Kinds do not reorder what is well."""
    assert take_all(filled("a", "b", "a", "c", "b")) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("how", ["failed", "broken"])
def test_of_a_kind_that_only_fails_few_are_under_way(how: str) -> None:
    """The others pass it by."""
    lanes = Lanes()
    make_ailing(lanes, "bad", how)
    for ticket in range(10):
        lanes.add(ticket, "bad" if ticket < 8 else "good")
    assert take_all(lanes) == [*range(AILING_IN_FLIGHT), 8, 9]
    assert (len(lanes), lanes.ready) == (8 - AILING_IN_FLIGHT, False)


def test_each_end_of_an_ailing_kind_lets_one_more_try() -> None:
    """It is never given up: whoever asked hears how its own create ended."""
    lanes = Lanes()
    make_ailing(lanes, "bad")
    for ticket in range(6):
        lanes.add(ticket, "bad")
    order = take_all(lanes)
    for _ in range(4):
        assert lanes.ended("bad", "failed")
        order += take_all(lanes)
    assert order == list(range(6))


def test_one_success_makes_a_kind_well() -> None:
    """All that waited may start, in order among the others."""
    lanes = Lanes()
    make_ailing(lanes, "bad")
    for ticket, kind in enumerate(["bad"] * 4 + ["good"] + ["bad"]):
        lanes.add(ticket, kind)
    assert take_all(lanes) == [0, 1, 4]
    lanes.ended("bad", "served")
    assert take_all(lanes) == [2, 3, 5]


def test_a_success_between_failures_keeps_a_kind_well() -> None:
    """Only failures without a success between count."""
    lanes = filled(*["a"] * 20)
    for how in ["failed", "failed", "served"] * 6:
        assert lanes.take() is not None
        assert not lanes.ended("a", how)
    assert take_all(lanes) == [18, 19]


def test_a_withdrawn_head_does_not_hold_up_its_lane() -> None:
    """Nor does one that is asked for again under its number."""
    lanes = filled("a", "a", "b", "a")
    assert lanes.remove(0)
    assert not lanes.remove(0)
    lanes.add(0, "a")
    assert take_all(lanes) == [1, 2, 3, 0]


def test_the_memory_of_failing_kinds_is_bounded() -> None:
    """The oldest is forgiven, and what waits of it may start."""
    lanes = Lanes()
    make_ailing(lanes, "first")
    for ticket in range(5):
        lanes.add(ticket, "first")
    assert len(take_all(lanes)) == AILING_IN_FLIGHT
    for number in range(AILING_KINDS):
        lanes.add(1000 + number, number)
        assert lanes.take() is not None
        lanes.ended(number, "failed")
    assert take_all(lanes) == [2, 3, 4]


STEPS = ("add", "take", "remove", "served", "failed", "broken", "other")


@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 2))))
def test_whatever_happens_nothing_is_lost_and_each_lane_is_in_order(steps: list[tuple[str, int]]) -> None:
    """Every ticket is queued, taken or removed; of one kind the earlier goes first; what may start does."""
    lanes, tickets, running = Lanes(), 0, Counter[int]()
    queued: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for step, kind in steps:
        if step == "add":
            lanes.add(tickets, kind)
            queued[kind].append(tickets)
            tickets += 1
        elif step == "remove" and queued[kind]:
            assert lanes.remove(queued[kind].pop(0))
        elif step == "take":
            free = [k for k in queued if queued[k] and not (lanes.ailing(k) and running[k] >= AILING_IN_FLIGHT)]
            first = min(((queued[k][0], k) for k in free), default=None)
            assert lanes.take() == first
            if first is not None:
                queued[first[1]].pop(0)
                running[first[1]] += 1
        elif step in STEPS[3:] and running[kind]:
            running[kind] -= 1
            lanes.ended(kind, step)
        assert len(lanes) == sum(map(len, queued.values()))
