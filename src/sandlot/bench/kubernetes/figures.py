"""From moments to figures: pure arithmetic on what clients have seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

PERCENTS: Final = (50, 90, 99, 100)


def reached_s(moments_s: Sequence[float], asked: int, percent: float) -> float | None:
    """When `percent` of the `asked` had come, in the unit of `moments_s`. None: so many never came.

    What never came counts as late, not as absent: the hundredth percent of 1,000 is the last of 1,000.
    """
    needed = max(1, math.ceil(asked * percent / 100))
    return None if len(moments_s) < needed else sorted(moments_s)[needed - 1]


def jain(shares: Sequence[float]) -> float:
    """The fairness index of Jain, Chiu and Hawe (1984): 1 when all shares are equal, 1/n when one has everything."""
    squares = sum(share * share for share in shares)
    return 1.0 if squares == 0 else sum(shares) ** 2 / (len(shares) * squares)


def together(began_s: Sequence[float], moments_s: Sequence[Sequence[float]]) -> list[int]:
    """How many each client got while all of them wanted more: from the last one's beginning to the first one's end.

    Empty when there was no such time.
    """
    if not all(moments_s):
        return []
    start, end = max(began_s), min(max(each) for each in moments_s)
    return [sum(start < moment <= end for moment in each) for each in moments_s] if start < end else []


def fair_wait_s(count: int, clients: int, rate_per_s: float) -> float:
    """What a client of `count` would wait if it had, alone, its equal share of the rate at which the cluster starts pods."""
    return count * clients / rate_per_s
