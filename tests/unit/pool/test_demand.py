"""The announced requests: an order in which any one may be taken out of turn."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sandlot.pool.demand import Demand
from sandlot.spec import Spec

SPECS = [Spec(image=f"dir:/{letter}") for letter in "abc"]


def test_nothing_announced_is_not_the_same_as_nothing_left() -> None:
    """Only after an announcement is the future known."""
    demand = Demand()
    assert demand.remaining is None
    demand.expect([SPECS[0]])
    demand.take(SPECS[0])
    assert demand.remaining == {}


steps = st.lists(st.lists(st.sampled_from(SPECS), max_size=4) | st.sampled_from(SPECS), max_size=40)


@given(steps, st.integers(0, 10))
def test_behaves_as_a_list_of_which_the_first_match_is_removed(listed: list[list[Spec] | Spec], width: int) -> None:
    """Window, remaining counts and length agree with the plain way of doing it."""
    demand, plain = Demand(), list[Spec]()
    for step in listed:
        if isinstance(step, list):
            demand.expect(step)
            plain += step
        else:
            demand.take(step)
            if step in plain:
                plain.remove(step)
        assert demand.window(width) == tuple(plain[:width])
        assert dict(demand.remaining or {}) == Counter(plain)
        assert len(demand) == len(plain)
