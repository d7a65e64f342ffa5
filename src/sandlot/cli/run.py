"""`sandlot run`: tasks through a pool, judged, on disk as they finish; the same command again continues."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from sandlot.cli.kubernetes import Where, where_options
from sandlot.cli.output import json_option, print_json, say
from sandlot.cli.progress import show_progress
from sandlot.cli.running import run
from sandlot.errors import BadRequest, WriteFailed
from sandlot.events import EventLog
from sandlot.pool import Pool, PoolLimits
from sandlot.report import Figures, make_report
from sandlot.rollout import ContentStore, PhaseLimits, RolloutResult, RolloutSettings, RunStore, rollouts, write_whole
from sandlot.rollout.agents import Agent, agent_from
from sandlot.rollout.store import EVENTS
from sandlot.strategies import look_ahead
from sandlot.tasks import Task, read_tasks


@dataclass(frozen=True, slots=True)
class Asked:
    """One call of `sandlot run`."""

    tasks: tuple[Task, ...]
    agent: Agent
    per_task: int
    settings: RolloutSettings
    retry_lost: bool
    keep_contents: bool

    def finished(self, done: Iterable[RolloutResult]) -> list[RolloutResult]:
        """Of the results that are there, those that are not to be had again."""
        return [result for result in done if result.status == "scored" or not self.retry_lost]

    def request(self) -> dict[str, Any]:
        """What decides results: all of it must be the same for a run to be continued. How fast it goes is no part of it."""
        settings = self.settings
        return {
            "agent": self.agent.name,
            "per_task": self.per_task,
            "judged": settings.where,
            "tries": settings.tries,
            "agent_limit_s": settings.limits.agent_s,
            "tasks": {task.id: task.digest for task in self.tasks},
        }


@click.command("run")
@click.argument("file", metavar="TASKS.JSONL", type=click.Path(path_type=Path))
@click.option("--agent", required=True, help="gold, half, none, MODULE:FUNCTION, or a command to run inside the sandbox.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder of the run; the same again continues it.")
@click.option("--per-task", default=1, show_default=True, type=click.IntRange(min=1), help="Rollouts of each task.")
@click.option("--concurrency", default=8, show_default=True, type=click.IntRange(min=1), help="Agents at once.")
@click.option("--judges", type=click.IntRange(min=1), help="Judges at once, on top.  [default: as --concurrency]")
@click.option("--tries", default=3, show_default=True, type=click.IntRange(min=1), help="For what is worth trying again.")
@click.option("--agent-limit", default=3600.0, show_default=True, metavar="SECONDS", help="For tasks without one of their own.")
@click.option("--judge", "judged", type=click.Choice(["twin", "in-place"]), default="twin", show_default=True)
@click.option("--task", "only", multiple=True, metavar="ID", help="Only this task; may be given again.")
@click.option("--retry-lost", is_flag=True, help="Run rollouts that were lost in an earlier call once more.")
@click.option("--keep-contents", is_flag=True, help="Keep what every call carried, not only its digest.")
@json_option
@where_options
def command(  # noqa: PLR0917 - click gives every option by name
    where: Where,
    file: Path,
    agent: str,
    out: Path,
    per_task: int,
    concurrency: int,
    judges: int | None,
    tries: int,
    agent_limit: float,
    judged: str,
    only: tuple[str, ...],
    retry_lost: bool,
    keep_contents: bool,
    as_json: bool,
) -> int:
    """Run each task of TASKS.JSONL with an agent, judge what it left, and report.

    Every result is on the disk before the next thing happens. Lost rollouts are reported apart and are in no average. The exit
    code is 1 when a rollout was lost or a row of the file is no task.
    """
    tasks, bad_rows = _tasks(file, only)
    settings = RolloutSettings(
        concurrency=concurrency,
        judges=judges,
        tries=tries,
        limits=PhaseLimits(agent_s=agent_limit),
        where="twin" if judged == "twin" else "in_place",
    )
    asked = Asked(tasks, agent_from(agent), per_task, settings, retry_lost, keep_contents)
    with RunStore(out, asked.request()) as store:
        try:
            run(_run(where, asked, store))
        except BaseException:
            _save_report(out, stopped=True)
            raise
    figures, text = _save_report(out, stopped=False)
    if as_json:
        print_json({"out": str(out), "report": figures})
    else:
        sys.stdout.write(text)
        say(f"report: {out / 'report.html'}")
    for row in figures.failures:
        if row.lost:
            say(f"lost {row.lost} rollouts in {row.phase}: {row.kind}: {row.example}")
    return 1 if bad_rows or figures.lost else 0


def _tasks(file: Path, only: tuple[str, ...]) -> tuple[tuple[Task, ...], int]:
    read = read_tasks(file)
    for error in read.errors:
        say(f"{error}; this row is left out, the others run")
    tasks = tuple(task for task in read.rows if not only or task.id in only)
    unknown = set(only) - {task.id for task in read.rows}
    if unknown:
        raise BadRequest(f"{file} has no task {min(unknown)!r}")
    if not tasks:
        raise BadRequest(f"{file} has no task that can be run", hint="correct its rows, see `sandlot tasks check`")
    return tasks, len(read.errors)


async def _run(where: Where, asked: Asked, store: RunStore) -> None:
    events = EventLog(store.folder / EVENTS)
    finished = asked.finished(store.done)
    limits = PoolLimits(sandboxes=asked.settings.concurrency + 2 * (asked.settings.judges or asked.settings.concurrency))
    contents = ContentStore(store.folder) if asked.keep_contents else None
    try:
        async with (
            where.provider(events=events) as provider,
            Pool(provider, strategy=look_ahead(concurrency=asked.settings.concurrency), limits=limits) as pool,
            show_progress(events, total=len(asked.tasks) * asked.per_task, done=finished),
            aclosing(
                rollouts(
                    asked.tasks,
                    asked.agent,
                    pool,
                    per_task=asked.per_task,
                    settings=asked.settings,
                    finished=finished,
                    contents=contents,
                )
            ) as results,
        ):
            async for result in results:
                _write(result, store, events)
    finally:
        with suppress(WriteFailed):  # said already, or only the last few events are missing
            events.close()


def _write(result: RolloutResult, store: RunStore, events: EventLog) -> None:
    """The result first: of the two it is the one that cannot be had again."""
    store.write(result)
    events.flush()


def _save_report(out: Path, *, stopped: bool) -> tuple[Figures, str]:
    report = make_report(out)
    try:
        for name, data in report.files.items():
            write_whole(out / name, data)
    except WriteFailed:
        if not stopped:
            raise
    if stopped:
        say(f"stopped: {report.figures.finished} of {report.figures.asked} rollouts are finished and kept in {out}")
        say("the same command continues")
    elif report.missing:
        say(report.missing)
    return report.figures, report.text
