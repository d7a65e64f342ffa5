"""`tests.patience`: what of a busy machine's time counts."""

from __future__ import annotations

import pytest

from tests.patience import counted_s


@pytest.mark.parametrize(
    ("after", "counts_s"),
    [
        ({"cpu": 1.0, "io": 2.0}, 10.0),
        ({"cpu": 4.0, "io": 2.0}, 7.0),
        ({"cpu": 4.0, "io": 8.0}, 4.0),
        ({"cpu": 11.0, "io": 2.0}, 1.0),
        (None, 1.0),
    ],
)
def test_what_was_waited_for_does_not_count_but_for_a_tenth(after: dict[str, float] | None, counts_s: float) -> None:
    """The longest of all waits; where nobody tells, a tenth of everything."""
    assert counted_s(10.0, {"cpu": 1.0, "io": 2.0}, after) == pytest.approx(counts_s)
