"""Plots as SVG text, by matplotlib, which is imported only here. No text from a sandbox goes into a plot unescaped."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sandlot.report.figures import Figures
from sandlot.report.text import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis

WIDTH_IN, HEIGHT_IN = 7.0, 3.0
BAR: Final = 0.7
FEW: Final = 4
"""Rows that a bar chart has room for at least, so that one bar does not fill it."""
LEAST_S: Final = 1e-4
"""What a logarithmic scale shows for nothing at all."""
COLOURS: Final = {"acquire": "#c44e52", "agent": "#4c72b0", "quiesce": "#8172b3", "judge": "#55a868"}


def make_plots(figures: Figures) -> dict[str, str]:
    """SVG by title; only plots that have something to show."""
    made = {
        "Time to first command": _first_command if figures.first_commands_s else None,
        "Phases": _phases if figures.phases else None,
        "Rollouts in each phase over time": _concurrency if figures.curves else None,
        "Failed tries by class": _failures if figures.failures else None,
        "Slowest tasks": _slowest if figures.slowest else None,
    }
    return {title: _svg(draw, figures) for title, draw in made.items() if draw is not None}


def _svg(draw: Callable[[Axes, Figures], None], figures: Figures) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Text stays text, so that it can be searched; ids come from a fixed salt, so that equal runs give equal files.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "sandlot", "text.usetex": False, "text.parse_math": False}):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        axes = figure.add_subplot()
        axes.spines[["top", "right"]].set_visible(False)
        draw(axes, figures)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _first_command(axes: Axes, figures: Figures) -> None:
    values = sorted(figures.first_commands_s)
    shares = [100 * (number + 1) / len(values) for number in range(len(values))]
    axes.step([value * 1000 for value in values], shares, where="post", color=COLOURS["agent"])
    axes.set(xlabel="milliseconds from request to first command", ylabel="% of sandboxes", ylim=(0, 102))
    if values[-1] > 20 * max(values[0], LEAST_S):
        _log_scale(axes, 1000 * values[0])


def _phases(axes: Axes, figures: Figures) -> None:
    names = list(figures.phases)
    height = 0.2
    for number, field in enumerate(("p50", "p90", "p99", "max")):
        places = [row + (number - 1.5) * height for row in range(len(names))]
        values = [max(getattr(figures.phases[name], field), LEAST_S) for name in names]
        axes.barh(places, values, height=height * 0.9, label=field, color=str(0.25 + 0.18 * number))
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="seconds")
    _log_scale(axes, min(spread.p50 for spread in figures.phases.values()))
    axes.legend(frameon=False, fontsize="small")


def _concurrency(axes: Axes, figures: Figures) -> None:
    for curve in figures.curves:
        axes.step(curve.seconds, curve.counts, where="post", label=curve.phase, color=COLOURS.get(curve.phase), linewidth=1)
    axes.set(xlabel="seconds", ylabel="rollouts", ylim=(0, None))
    _whole_numbers(axes.yaxis)
    axes.legend(frameon=False, fontsize="small")


def _failures(axes: Axes, figures: Figures) -> None:
    rows = figures.failures[:12]
    axes.barh(range(len(rows)), [row.tries for row in rows], height=BAR, color="#999999", label="tries")
    axes.barh(range(len(rows)), [row.lost for row in rows], height=BAR, color=COLOURS["acquire"], label="rollouts lost")
    axes.set_yticks(range(len(rows)), [plain(f"{row.phase}: {row.kind}", 40) for row in rows])
    axes.set(xlabel="tries", ylim=(max(len(rows), FEW) - 0.5, -0.5))
    _whole_numbers(axes.xaxis)
    axes.legend(frameon=False, fontsize="small")


def _slowest(axes: Axes, figures: Figures) -> None:
    rows = figures.slowest
    axes.barh(range(len(rows)), [row.mean_seconds for row in rows], height=BAR, color=COLOURS["agent"])
    axes.set_yticks(range(len(rows)), [plain(row.task, 40) for row in rows])
    axes.set(xlabel="mean seconds a rollout", ylim=(max(len(rows), FEW) - 0.5, -0.5))


def _whole_numbers(axis: Axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True))


def _log_scale(axes: Axes, least: float) -> None:
    """Logarithmic, from the power of ten below the least value, with plain numbers."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    axes.set_xscale("log")
    axes.set_xlim(left=10 ** math.floor(math.log10(max(least, LEAST_S))))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
