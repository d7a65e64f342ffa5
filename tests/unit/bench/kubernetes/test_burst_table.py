"""Rounds of a burst as rows."""

from __future__ import annotations

import math
from collections import Counter

import pytest

from sandlot.bench.kubernetes.burst import Burst, Round
from sandlot.bench.kubernetes.burst_table import rows
from sandlot.bench.kubernetes.metrics import Kind
from sandlot.bench.kubernetes.plans import Harvest, Outcome
from sandlot.bench.kubernetes.plans import Kind as Work
from sandlot.bench.table import Row
from sandlot.errors import BadRequest


def outcome(began_s: float, moments_s: list[float], asked: int, failures: dict[str, int] | None = None) -> Outcome:
    harvest = Harvest(moments_s=moments_s, failures=failures or {})
    return Outcome(asked=asked, began_s=began_s, harvest=harvest, cpu_s=0.01 * asked, peak_kib=2048, base_kib=1024)


def round_of(kind: Work, *outcomes: Outcome, left: dict[str, list[str]] | None = None) -> Round:
    asked = sum(one.asked for one in outcomes)
    counted = Counter({Kind("POST", "pods", ""): asked, Kind("PATCH", "pods", "status"): 3 * asked})
    return Round(kind=kind, outcomes=list(outcomes), writes=counted, held=asked, left=left or {})


def table(*rounds: Round, skew: bool = False) -> dict[str, Row]:
    return {row.case: row for row in rows(rounds, skew=skew)}


def test_times_count_from_each_clients_own_beginning_and_in_all_from_the_first() -> None:
    """The second client begins 10 s later: its own times are from there, those of all from the first one's beginning."""
    plain = round_of("plain", outcome(100, [101, 102], 2), outcome(110, [111, 112], 2))
    ours = round_of("sandboxes", outcome(200, [202, 204], 2), outcome(210, [213, 216], 2))
    found = table(plain, ours)
    everything, second = found["usable at 100 %, all clients"], found["client 2 of 2: usable at 100 % of 2"]
    assert (everything.p50, everything.floor) == (16, 12)
    assert everything.ratio == pytest.approx(16 / 12)
    assert (second.p50, second.floor, second.ratio) == (6, 2, 3)


def test_ratios_are_taken_pair_by_pair() -> None:
    """A slow minute slows a floor and what stands beside it: the median of ratios, not the ratio of medians."""
    pairs = []
    for floor_s, ours_s in ((1, 2), (10, 11), (4, 6)):
        pairs += [round_of("plain", outcome(0, [floor_s], 1)), round_of("sandboxes", outcome(0, [ours_s], 1))]
    assert table(*pairs)["usable at 100 %, all clients"].ratio == 1.5


def test_one_that_is_missing_is_never_usable_and_its_failure_is_counted_by_class() -> None:
    """99 of 100 make no hundredth percent; what came of the other is in a row of its own."""
    plain = round_of("plain", outcome(0, [1.0] * 100, 100))
    ours = round_of("sandboxes", outcome(0, [1.0] * 99, 100, {"not_ready": 1}))
    found = table(plain, ours)
    assert found["usable at 99 %, all clients"].ratio == 1.0
    assert found["usable at 100 %, all clients"].p50 == math.inf
    assert (found["usable"].p50, found["never usable: not_ready"].p50) == (99, 1)


def test_what_is_left_and_what_was_written_is_told() -> None:
    """Pods and leases left count together; writes of ours are apart from everybody's."""
    plain = round_of("plain", outcome(0, [1.0], 1))
    ours = round_of("sandboxes", outcome(0, [1.0], 1), left={"pods": ["a", "b"], "leases": ["c"]})
    found = table(plain, ours)
    assert found["left after exit, pods and leases"].p50 == 3
    assert (found["API writes of ours, each"].p50, found["API writes of everybody, each"].p50) == (1, 4)
    assert found["CPU of the clients, each"].p50 == pytest.approx(10)


def test_small_clients_are_held_against_their_fair_share_alone() -> None:
    """Floor: 8 pods in 4 s. A small client of 1 among 2 would need 1 s alone at half of that rate; it waited 3."""
    plain = round_of("plain", outcome(0, [1, 2, 3, 4, 4, 4, 4], 7), outcome(0, [4], 1))
    ours = round_of("sandboxes", outcome(0, [1, 2, 3, 4, 5, 6, 7], 7), outcome(1, [4], 1))
    small = table(plain, ours, skew=True)["client 2: all usable, beside alone at 1/2 of the floor's rate"]
    assert (small.p50, small.floor, small.ratio) == (3, 1, 3)


def test_fairness_is_told_only_of_clients_that_wanted_at_the_same_time() -> None:
    """Two that shared 3 : 1 make 0.8; where one had ended before the other began, nothing is said."""
    plain = round_of("plain", outcome(0, [1, 2, 3, 9], 4), outcome(0, [1, 2, 3], 3))
    ours = round_of("sandboxes", outcome(0, [1, 2, 3, 9], 4), outcome(0, [4], 1))
    apart = round_of("sandboxes", outcome(0, [1, 2], 2), outcome(5, [6], 1))
    case = "fairness (Jain) while all clients wanted more"
    assert table(plain, ours, skew=True)[case].p50 == pytest.approx(16 / 20)
    assert case not in table(plain, apart, skew=True)


def test_requests_are_dealt_evenly_or_by_the_skew() -> None:
    """The first takes the rest; a skewed burst is 7 : 1 : 1 : 1 and about four clients only."""
    burst = Burst(requests=10_001, clients=4, nodes="fake", connect="dial-in", image="i")
    skewed = Burst(requests=10_000, clients=4, nodes="fake", connect="dial-in", image="i", skew=True)
    assert burst.counts() == [2501, 2500, 2500, 2500]
    assert skewed.counts() == [7000, 1000, 1000, 1000]
    with pytest.raises(BadRequest):
        Burst(requests=100, clients=3, nodes="fake", connect="dial-in", image="i", skew=True).counts()
    with pytest.raises(BadRequest):
        Burst(requests=3, clients=4, nodes="fake", connect="dial-in", image="i").counts()
