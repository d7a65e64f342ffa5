"""The report as plain text, fit for a terminal. Text that may come from a sandbox loses its control characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from sandlot.report.figures import Figures, Spread

CELL_CHARS: Final = 60


def plain(text: str, limit: int = CELL_CHARS) -> str:
    """One line without anything that a terminal would obey: escapes, line ends, other controls and direction marks."""
    clean = "".join(char if char.isprintable() else " " for char in text)
    return clean if len(clean) <= limit else f"{clean[: limit - 1]}…"


def render_text(figures: Figures) -> str:
    """The whole report."""
    parts = [_head(figures), _times(figures), _tasks(figures), _failures(figures)]
    return "\n\n".join(part for part in parts if part) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Columns as wide as they must be; the first is set left, the others right."""
    body = [tuple(plain(cell) for cell in row) for row in rows]
    widths = [max(len(row[column]) for row in [tuple(header), *body]) for column in range(len(header))]

    def line(row: Sequence[str]) -> str:
        first, *rest = (cell.ljust(w) if not n else cell.rjust(w) for n, (cell, w) in enumerate(zip(row, widths, strict=True)))
        return "  ".join([first, *rest]).rstrip()

    return "\n".join([line(header), "  ".join("-" * width for width in widths), *map(line, body)])


def seconds(value: float) -> str:
    """A time with three significant figures and its unit."""
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 1000 else f"{value / 60:.3g} min"


def share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def reward(value: float | None) -> str:
    """A mean reward, or a dash where nothing was scored: never 0."""
    return "-" if value is None else f"{value:.3g}"


def _head(figures: Figures) -> str:
    lines = [
        f"agent {plain(figures.agent)}: {figures.finished} of {figures.asked} rollouts finished, {figures.scored} scored, "
        f"{figures.lost} lost (in no average)",
        f"mean reward {reward(figures.mean_reward)}",
    ]
    if figures.reasons:
        lines.append("verdicts: " + ", ".join(f"{count} {plain(name)}" for name, count in figures.reasons.items()))
    if figures.left_out:
        lines.append("kept from the judge: " + ", ".join(f"{n} x {plain(why)}" for why, n in figures.left_out.items()))
    if figures.sandboxes:
        lines.append("sandboxes: " + ", ".join(f"{name} {count}" for name, count in figures.sandboxes.items()))
    if figures.unreadable:
        lines.append(f"{figures.unreadable} lines could not be read")
    return "\n".join(lines)


def _times(figures: Figures) -> str:
    named: list[tuple[str, Spread | None]] = [("time to first command", figures.first_command), *figures.phases.items()]
    rows = [
        (name, str(spread.n), *(seconds(value) for value in (spread.p50, spread.p90, spread.p99, spread.max)))
        for name, spread in named
        if spread is not None
    ]
    if not rows:
        return ""
    pace = "" if figures.rollouts_per_minute is None else f", {figures.rollouts_per_minute:.3g} rollouts a minute"
    return (
        table(("phase", "n", "p50", "p90", "p99", "max"), rows)
        + f"\nrun time {seconds(figures.wall_s)}{pace}; waiting for sandboxes: {share(figures.waiting_share)} of rollout time, "
        + f"{share(figures.stalled_share)} of the run with nothing else going on"
    )


def _tasks(figures: Figures) -> str:
    rows = [
        (row.task, str(row.scored), str(row.lost), reward(row.mean_reward), seconds(row.mean_seconds)) for row in figures.tasks
    ]
    return table(("task", "scored", "lost", "reward", "mean time"), rows) if rows else ""


def _failures(figures: Figures) -> str:
    rows = [(f"{row.phase}: {row.kind}", str(row.tries), str(row.lost), row.example) for row in figures.failures]
    return table(("failed tries", "tries", "lost", "for example"), rows) if rows else ""
