"""What is said at the end, and how durations are summed up."""

from __future__ import annotations

import pytest

from sandlot.accounts import Closing, Spread
from sandlot.errors import CleanupFailed


def test_a_closing_says_what_became_of_everything() -> None:
    """Counts first, names only of what needs someone's attention."""
    assert str(Closing(5, 5)) == "created 5, gone 5, left 0"
    assert str(Closing(5, 3, left=("a", "b"))) == "created 5, gone 3, left 2 (a, b)"
    assert str(Closing(5, 4, kept=("k",))) == "created 5, gone 4, left 0, kept 1 under a lease (k)"


def test_checking_a_closing_raises_only_when_something_is_left() -> None:
    """What is kept under a lease was asked for."""
    closing = Closing(5, 4, kept=("k",))
    assert closing.check() is closing
    with pytest.raises(CleanupFailed) as caught:
        Closing(2, 1, left=("a",)).check()
    assert caught.value.left == ("a",)


def test_a_spread_of_nothing_and_of_something() -> None:
    """Nearest rank, in any order."""
    assert Spread.of([]) == Spread()
    assert Spread.of([2.0]) == Spread(1, 2.0, 2.0, 2.0, 2.0)
    assert Spread.of(range(100, 0, -1)) == Spread(100, 50, 90, 99, 100)
