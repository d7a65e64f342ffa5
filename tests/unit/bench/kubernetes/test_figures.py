"""Figures of bursts."""

from __future__ import annotations

import pytest

from sandlot.bench.kubernetes.figures import fair_wait_s, jain, reached_s, together


def test_a_percentage_is_reached_by_the_one_that_completes_it() -> None:
    """Half of four is reached with the second to come, in whatever order they are told."""
    assert reached_s([4.0, 1.0, 3.0, 2.0], 4, 50) == 2.0
    assert reached_s([4.0, 1.0, 3.0, 2.0], 4, 90) == 4.0


def test_what_never_came_counts_as_late() -> None:
    """With one of ten missing, 90 % are reached by the last that came and 100 % never are."""
    came = [float(number) for number in range(9)]
    assert reached_s(came, 10, 90) == 8.0
    assert reached_s(came, 10, 100) is None
    assert reached_s([], 10, 50) is None


def test_equal_shares_are_fair_and_one_who_has_all_is_not() -> None:
    """The index is 1 for equal shares, 1/n when one of n has everything, and 1 when nobody has anything."""
    assert jain([5, 5, 5, 5]) == 1.0
    assert jain([8, 0, 0, 0]) == 0.25
    assert jain([0, 0]) == 1.0


def test_shares_are_counted_while_all_want_more() -> None:
    """Before the last has begun and after the first has ended, others take what nobody else asks for."""
    assert together([0.0, 10.0], [[1, 9, 11, 12, 13, 40], [12, 14]]) == [3, 2]


def test_clients_that_never_overlap_have_no_shares() -> None:
    """One that ended before the other began was not in its way; one that got nothing cannot be compared."""
    assert together([0.0, 10.0], [[1, 2], [12, 14]]) == []
    assert together([0.0, 1.0], [[2.0], []]) == []


def test_a_fair_wait_is_the_clients_own_work_at_its_share_of_the_rate() -> None:
    """1,000 pods at a quarter of 200 a second take 20 s."""
    assert fair_wait_s(1000, 4, 200.0) == pytest.approx(20.0)
