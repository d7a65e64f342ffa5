"""`sandlot bench`: what Sandlot costs on this machine, against a floor taken in the same run."""

from __future__ import annotations

from collections.abc import Awaitable
from pathlib import Path

import click

from sandlot.bench.table import COLUMNS, Table, plot
from sandlot.cli.output import json_option, print_json, print_table, say
from sandlot.cli.running import run

_plot_option = click.option("--plot", "picture", type=click.Path(path_type=Path, dir_okay=False), help="Also draw FILE.svg.")


@click.group("bench")
def command() -> None:
    """Measure this machine against its own floor. The numbers to compare are the ratios."""


@command.command("noop")
@click.option("--blocks", default=40, show_default=True, type=click.IntRange(20), help="Pairs of floor and candidate blocks.")
@click.option("--size", default=25, show_default=True, type=click.IntRange(1), help="Commands in a block.")
@click.option("--sandboxes", default=64, show_default=True, type=click.IntRange(1), help="Sandboxes used at once.")
@click.option(
    "--soak", default=20_000, show_default=True, type=click.IntRange(1), help="Commands between two looks at what is held."
)
@json_option
@_plot_option
def noop(blocks: int, size: int, sandboxes: int, soak: int, as_json: bool, picture: Path | None) -> int:
    """Commands that do nothing, checked one by one."""
    from sandlot.bench.noop import measure

    return _finish(measure(blocks=blocks, size=size, sandboxes=sandboxes, soak=soak), as_json, picture)


@command.command("create")
@click.option("--blocks", default=20, show_default=True, type=click.IntRange(20), help="Pairs of floor and candidate blocks.")
@click.option("--size", default=5, show_default=True, type=click.IntRange(1), help="Sandboxes in a block.")
@click.option("--burst", default=200, show_default=True, type=click.IntRange(1), help="Sandboxes asked for at once.")
@json_option
@_plot_option
def create(blocks: int, size: int, burst: int, as_json: bool, picture: Path | None) -> int:
    """Sandboxes made, used once and destroyed."""
    from sandlot.bench.create import measure

    return _finish(measure(blocks=blocks, size=size, burst=burst), as_json, picture)


@command.command("density")
@click.option("--count", default=500, show_default=True, type=click.IntRange(1), help="Sandboxes alive at once.")
@click.option(
    "--idle", default=60.0, show_default=True, type=click.FloatRange(0), help="Seconds of nothing before all are asked."
)
@json_option
@_plot_option
def density(count: int, idle: float, as_json: bool, picture: Path | None) -> int:
    """Many sandboxes alive at once, each with a job and files."""
    from sandlot.bench.density import measure

    return _finish(measure(count=count, idle_s=idle, progress=say), as_json, picture)


@command.command("reset")
@click.option("--times", default=200, show_default=True, type=click.IntRange(20), help="Episodes in a row in one sandbox.")
@click.option("--files", default=2000, show_default=True, type=click.IntRange(1), help="Files changed by each.")
@json_option
@_plot_option
def reset(times: int, files: int, as_json: bool, picture: Path | None) -> int:
    """One sandbox used again and again."""
    from sandlot.bench.reset import measure

    return _finish(measure(times=times, files=files), as_json, picture)


def _finish(measuring: Awaitable[Table], as_json: bool, picture: Path | None) -> int:
    table = run(_awaited(measuring))
    if as_json:
        print_json(table.document())
    else:
        print_table(COLUMNS, table.cells())
        say(f"benchmark {table.benchmark} on {table.machine}")
    if picture is not None:
        plot(table, picture)
        say(f"plot written to {picture}")
    return 0


async def _awaited(measuring: Awaitable[Table]) -> Table:
    return await measuring
