"""The form that every benchmark's result has: rows with a case, numbers, a unit, a floor and a ratio to it."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sandlot.errors import BadRequest, Unsupported


@dataclass(frozen=True, slots=True)
class Row:
    """One measured case. `p50`, `p99` and `floor` have the unit `unit`; `ratio` is the median of paired ratios."""

    case: str
    n: int
    p50: float
    p99: float | None
    unit: str
    floor: float | None = None
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """All rows of one benchmark on one machine."""

    benchmark: str
    machine: str
    rows: tuple[Row, ...]

    def document(self) -> dict[str, Any]:
        """The JSON object `{"benchmark", "machine", "rows": [...]}`; numbers rounded to four significant digits."""
        rows = [{key: _rounded(value) for key, value in asdict(row).items()} for row in self.rows]
        return {"benchmark": self.benchmark, "machine": self.machine, "rows": rows}

    def cells(self) -> list[Sequence[str]]:
        """The rows as text, for a table that people read."""
        return [
            (row.case, str(row.n), _text(row.p50), _text(row.p99), row.unit, _text(row.floor), _text(row.ratio))
            for row in self.rows
        ]


COLUMNS = ("CASE", "N", "P50", "P99", "UNIT", "FLOOR", "RATIO")


def machine() -> str:
    """This machine in one line, without its name."""
    cpus = len(os.sched_getaffinity(0))
    pages, size = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    release = platform.release()
    return f"{cpus} CPUs, {pages * size / 2**30:.0f} GiB, Linux {release}, Python {platform.python_version()}"


def plot(table: Table, target: Path) -> None:
    """Draw the cases that have a ratio as bars beside their floor, as an SVG file.

    Raises:
        BadRequest: the file name does not end in .svg, or no row has a ratio.
        Unsupported: matplotlib (the extra `report`) is not installed.
    """
    if target.suffix != ".svg":
        raise BadRequest(f"{target} is not an .svg file", hint="--plot writes SVG only")
    rows = [row for row in table.rows if row.ratio is not None]
    if not rows:
        raise BadRequest(f"benchmark {table.benchmark} has no ratio to draw")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported("plots need matplotlib", hint="pip install 'sandlot[report]'") from None
    figure = Figure(figsize=(9, 1.2 + 0.45 * len(rows)), layout="constrained")
    axes = figure.add_subplot()
    names = [row.case for row in rows]
    ratios = [row.ratio or 0.0 for row in rows]
    bars = axes.barh(names, ratios, color="#3b6ea5")
    axes.bar_label(bars, [f"{row.ratio:.2f} ({row.p50:.3g} {row.unit})" for row in rows], padding=4, fontsize=8)
    axes.axvline(1.0, color="#b03030", linewidth=1)
    axes.invert_yaxis()
    axes.margins(x=0.25)
    axes.set_xlabel("times the floor (red line)")
    axes.set_title(f"sandlot bench {table.benchmark} on {table.machine}", fontsize=9, loc="left")
    figure.savefig(target, format="svg")


def _rounded(value: Any) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
