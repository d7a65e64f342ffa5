"""What verbs print: data to standard output, words for people to standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

import click
import msgspec

from sandlot.cli.failures import one_line

_WIDEST: Final = 100_000  # no row of ours is wider
_LEAST_LONG: Final = 24  # columns: less, and an image's name is a pillar of fragments

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")


def print_json(value: Any) -> None:
    """One object on one line."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]], *, long: str | None = None) -> None:
    """Aligned columns; whatever a sandbox may have put into a name or label is shown, never obeyed by the terminal.

    `long`: the only column that is folded where the terminal is narrow. Where that would leave it too little, and where there
    is no terminal, each row is one line, however long.
    """
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=long is not None and column != long)
    cells = [[one_line(str(cell)) for cell in row] for row in rows]
    for row in cells:
        table.add_row(*map(Text, row))
    console = Console(highlight=False)
    if long is not None:
        whole = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
        widest = max((cell_len(row[list(columns).index(long)]) for row in cells), default=0)
        if not console.is_terminal or whole - widest + _LEAST_LONG > console.width:
            console.width = whole
    console.print(table)


def say(text: str) -> None:
    """One line for the person at the terminal."""
    click.echo(f"sandlot: {one_line(text)}", err=True)


def duration(seconds: float | None) -> str:
    """Seconds as people read them: 42 s, 5 min, 3 h, 2 d; a dash for None."""
    if seconds is None:
        return "-"
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172_800, "h", 3600)):
        if seconds < limit:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds / 86_400:.0f} d"


def size(count: int | None) -> str:
    """Bytes as people read them; a dash for None."""
    if count is None:
        return "-"
    value, units = float(count), ["B", "KiB", "MiB", "GiB", "TiB"]
    while value >= 1024 and len(units) > 1:
        value /= 1024
        units.pop(0)
    return f"{value:.4g} {units[0]}"
