"""What a run waits for, on standard error: one line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

from sandlot.cli.failures import one_line
from sandlot.events import EventLog
from sandlot.rollout import RolloutResult
from sandlot.rollout.progress import Progress

TERMINAL_EVERY_S: Final = 0.2
PLAIN_EVERY_S: Final = 10.0
BAR_WIDTH: Final = 16


@asynccontextmanager
async def show_progress(events: EventLog, *, total: int, done: Iterable[RolloutResult]) -> AsyncIterator[None]:
    """Shows the run's progress, read from its events, while the block runs."""
    progress = Progress(total)
    for result in done:
        progress.count(result.reward)
    if progress.done:
        print(f"sandlot: continuing: {progress.done} of {total} rollouts are finished", file=sys.stderr)
    draw = _on_terminal if sys.stderr.isatty() else _plain
    task = asyncio.create_task(draw(progress, events), name="progress")
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


def _line(progress: Progress, events: EventLog) -> str:
    progress.take(events.since(progress.seen))
    return one_line(progress.line(events.clock()))


async def _plain(progress: Progress, events: EventLog) -> None:
    said = ""
    while True:
        await asyncio.sleep(PLAIN_EVERY_S)
        line = _line(progress, events)
        if line != said:
            print(f"sandlot: {line}", file=sys.stderr)
            said = line


async def _on_terminal(progress: Progress, events: EventLog) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar
    from rich.table import Column
    from rich.text import Text

    bar_place = Column(no_wrap=True, min_width=BAR_WIDTH)
    columns = (BarColumn(BAR_WIDTH, table_column=bar_place), TextColumn("{task.description}"))
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        row = bar.add_task("", total=progress.total)
        while True:
            line = _line(progress, events)
            bar.update(row, completed=progress.done, description=Text(line).markup)
            await asyncio.sleep(TERMINAL_EVERY_S)
