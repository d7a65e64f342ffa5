"""The rounds of a burst as rows: usable at 50 to 100 %, in all and for each client, and what it cost."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from sandlot.bench.kubernetes import metrics
from sandlot.bench.kubernetes.burst import Burst, Round, run
from sandlot.bench.kubernetes.figures import PERCENTS, fair_wait_s, jain, reached_s, together
from sandlot.bench.kubernetes.plans import Outcome
from sandlot.bench.table import Row, Table, machine

Figure = Callable[[Round], float]
NEVER: Final = math.inf


async def measure(burst: Burst, *, progress: Callable[[str], None], raw: Path | None) -> Table:
    """Run every round. `raw` gets one JSON object a round, with every client's moments."""
    rounds = await run(burst, progress)
    if raw is not None:
        _write(raw, rounds)
    return Table("burst", machine(), tuple(rows(rounds, skew=burst.skew)))


def _write(raw: Path, rounds: Sequence[Round]) -> None:
    raw.write_bytes(b"".join(msgspec.json.encode(_document(one)) + b"\n" for one in rounds))


def _document(one: Round) -> dict[str, object]:
    """Moments are seconds since the first client's beginning."""
    zero = min(outcome.began_s for outcome in one.outcomes)

    def told(outcome: Outcome) -> dict[str, object]:
        harvest = outcome.harvest
        return {
            "asked": outcome.asked,
            "began_s": round(outcome.began_s - zero, 4),
            "cpu_s": outcome.cpu_s,
            "peak_kib": outcome.peak_kib,
            "base_kib": outcome.base_kib,
            "failures": harvest.failures,
            "retried": harvest.retried,
            "moments_s": [round(moment - zero, 4) for moment in harvest.moments_s],
        }

    return {
        "kind": one.kind,
        "clients": [told(outcome) for outcome in one.outcomes],
        "writes": {str(kind): count for kind, count in sorted(one.writes.items())},
        "held": one.held,
        "left": one.left,
        "fleet_cpu_s": one.fleet_cpu_s,
    }


def rows(rounds: Sequence[Round], *, skew: bool) -> list[Row]:
    """Everything; floors and ratios come from the plain round before each of ours."""
    floors = [one for one in rounds if one.kind == "plain"]
    ours = [one for one in rounds if one.kind == "sandboxes"]
    table = _Rows(ours, floors)
    asked = [outcome.asked for outcome in ours[0].outcomes]
    for percent in PERCENTS:
        table.add(f"usable at {percent} %, all clients", "s", _usable_s(percent))
    for place, count in enumerate(asked):
        for percent in PERCENTS:
            case = f"client {place + 1} of {len(asked)}: usable at {percent} % of {count}"
            table.add(case, "s", _usable_s(percent, place))
    if skew:
        _fairness(table, len(asked))
    _outcome(table)
    _cost(table)
    return table.rows


class _Rows:
    def __init__(self, ours: Sequence[Round], floors: Sequence[Round]) -> None:
        self.ours = ours
        self.floors = floors
        self.rows: list[Row] = []

    def add(self, case: str, unit: str, figure: Figure, floor: Figure | None = None) -> None:
        """One row; the floor's figure is taken in the same way unless another is named."""
        mine = [figure(one) for one in self.ours]
        floors = [(floor or figure)(one) for one in self.floors]
        self._put(case, unit, mine, floors)

    def add_alone(self, case: str, unit: str, figure: Figure) -> None:
        """A row that has no floor."""
        self._put(case, unit, [figure(one) for one in self.ours], [])

    def _put(self, case: str, unit: str, mine: list[float], floors: list[float]) -> None:
        ratios = [one / floor for one, floor in zip(mine, floors, strict=False) if floor]
        self.rows.append(
            Row(
                case=case,
                n=sum(one.asked for one in self.ours),
                p50=statistics.median(mine),
                p99=None,
                unit=unit,
                floor=statistics.median(floors) if floors else None,
                ratio=statistics.median(ratios) if ratios else None,
            )
        )


def _usable_s(percent: float, place: int | None = None) -> Figure:
    """Seconds from the beginning of one client, or of the first of all; infinite when so many never came."""

    def figure(one: Round) -> float:
        outcomes = one.outcomes if place is None else one.outcomes[place : place + 1]
        moments = [moment for outcome in outcomes for moment in outcome.harvest.moments_s]
        reached = reached_s(moments, sum(outcome.asked for outcome in outcomes), percent)
        return NEVER if reached is None else reached - min(outcome.began_s for outcome in outcomes)

    return figure


def _fairness(table: _Rows, clients: int) -> None:
    """How equal the clients' shares were, and how long the small ones waited beside what they would have waited alone."""
    rate = statistics.median(one.asked / _usable_s(100)(one) for one in table.floors)

    def alone_s(place: int) -> Figure:
        return lambda one: fair_wait_s(one.outcomes[place].asked, clients, rate)

    if all(_shares(one) for one in (*table.ours, *table.floors)):  # else no two of them were ever in each other's way
        table.add("fairness (Jain) while all clients wanted more", "of 1", lambda one: jain(_shares(one)))
    for place in range(1, clients):
        case = f"client {place + 1}: all usable, beside alone at 1/{clients} of the floor's rate"
        table.add(case, "s", _usable_s(100, place), alone_s(place))


def _shares(one: Round) -> list[int]:
    return together([each.began_s for each in one.outcomes], [each.harvest.moments_s for each in one.outcomes])


def _outcome(table: _Rows) -> None:
    table.add("usable", "count", lambda one: float(sum(len(each.harvest.moments_s) for each in one.outcomes)))
    seen = [outcome.harvest for one in table.ours for outcome in one.outcomes]
    for kind in sorted({kind for harvest in seen for kind in harvest.failures}):
        table.add_alone(f"never usable: {kind}", "count", _failed(kind))
    for kind in sorted({kind for harvest in seen for kind in harvest.retried}):
        table.add_alone(f"attempts that failed: {kind}", "count", _retried(kind))
    table.add("pods that an observer saw while all were held", "count", lambda one: float(one.held))
    table.add("left after exit, pods and leases", "count", lambda one: float(sum(len(names) for names in one.left.values())))


def _failed(kind: str) -> Figure:
    return lambda one: float(sum(outcome.harvest.failures.get(kind, 0) for outcome in one.outcomes))


def _retried(kind: str) -> Figure:
    return lambda one: float(sum(outcome.harvest.retried.get(kind, 0) for outcome in one.outcomes))


def _cost(table: _Rows) -> None:
    table.add("API writes of ours, each", "count", lambda one: metrics.ours(one.writes) / one.asked)
    table.add("the same with the bindings to nodes, each", "count", _ours_and_bindings)
    table.add("API writes of everybody, each", "count", lambda one: one.writes.total() / one.asked)
    for kind in sorted({kind for one in table.ours for kind in one.writes if kind.is_ours}):
        table.add(f"of ours: {kind}, each", "count", _writes(kind))
    if any(one.fleet_cpu_s for one in table.ours):
        case = "CPU of what plays the daemons until all are usable, each"
        table.add_alone(case, "ms", lambda one: one.fleet_cpu_s / one.asked * 1e3)
    table.add("CPU of the clients, each", "ms", lambda one: sum(each.cpu_s for each in one.outcomes) / one.asked * 1e3)
    table.add("resident memory of the largest client", "MiB", lambda one: max(each.peak_kib for each in one.outcomes) / 1024)


def _ours_and_bindings(one: Round) -> float:
    return (metrics.ours(one.writes) + metrics.bindings(one.writes)) / one.asked


def _writes(kind: metrics.Kind) -> Figure:
    return lambda one: one.writes[kind] / one.asked
