"""`sandlot tasks`: check a task file, and make tasks from releases."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click

from sandlot.backends.local.runtime import cache_dir
from sandlot.cli.failures import one_line
from sandlot.cli.grouping import Verbs
from sandlot.cli.output import json_option, print_json, print_table, say
from sandlot.cli.running import run
from sandlot.errors import BadRequest, SandlotError, WriteFailed
from sandlot.opening import local
from sandlot.pool import Pool, PoolLimits
from sandlot.rollout import write_whole
from sandlot.tasks import read_tasks
from sandlot.tasks.releases.build import Built, build_task
from sandlot.tasks.releases.index import index_of_client
from sandlot.tasks.releases.recipe import Recipe, decode_recipe
from sandlot.tasks.rows import read_rows
from sandlot.tasks.swe import encode_row


@click.group("tasks", cls=Verbs)
def command() -> None:
    """Make and check task files: one task a line, in the usual SWE form."""


@command.command("check")
@click.argument("file", metavar="TASKS.JSONL", type=click.Path(path_type=Path))
@json_option
def check(file: Path, as_json: bool) -> int:
    """Say which lines of TASKS.JSONL are tasks and what is wrong with the others. Runs nothing."""
    read = read_tasks(file)
    if as_json:
        bad = [{"line": error.line, "message": error.message} for error in read.errors]
        print_json({"file": str(file), "tasks": [task.id for task in read.rows], "errors": bad})
    else:
        for error in read.errors:
            print(one_line(str(error)), file=sys.stderr)
        rows = [(task.id, task.spec.image, len(task.fail_to_pass), len(task.pass_to_pass)) for task in read.rows]
        print_table(("TASK", "IMAGE", "FAIL_TO_PASS", "PASS_TO_PASS"), rows)
    return 1 if read.errors else 0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one recipe came out."""

    recipe: Recipe
    built: Built | None
    error: SandlotError | None = None


@command.command("from-releases")
@click.argument("what", nargs=-1, metavar="[PROJECT OLD NEW]")
@click.option(
    "--list", "listing", type=click.Path(path_type=Path), help="Recipes, one JSON object a line, in place of PROJECT OLD NEW."
)
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Folder for tasks.jsonl.")
@click.option("--jobs", default=2, show_default=True, type=click.IntRange(min=1), help="Tasks built at once.")
@click.option("--image", default="host", show_default=True, help="What the tasks are made on: with Python 3 and its venv.")
@json_option
def from_releases(what: tuple[str, ...], listing: Path | None, out: Path, jobs: int, image: str, as_json: bool) -> int:
    """Make tasks from two releases of a Python project: the older tree, the newer one's change, its tests.

    Releases are fetched from the registry by pip, built, installed and run inside sandboxes, never on this machine. The
    tests are run five times on either side. What was built once is kept in the cache. For a cluster, which has no `host`
    image, name another with --image; `sandlot run --kubernetes` publishes it with what was built.
    """
    recipes = _recipes(what, listing)
    outcomes = run(_build_all(recipes, jobs, image))
    built = [outcome.built for outcome in outcomes if outcome.built is not None]
    out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "tasks.jsonl", b"".join(encode_row(one.row) for one in built))
    if as_json:
        print_json({"file": str(out / "tasks.jsonl"), "tasks": [_described(outcome) for outcome in outcomes]})
    else:
        print_table(
            ("TASK", "FAIL_TO_PASS", "PASS_TO_PASS", "UNSTABLE", "SET ASIDE", "SECONDS"), [_row(one) for one in outcomes]
        )
        say(f"{len(built)} tasks in {out / 'tasks.jsonl'}")
    return 0 if len(built) == len(outcomes) else 1


def _recipes(what: tuple[str, ...], listing: Path | None) -> Sequence[Recipe]:
    if (listing is None) == (not what):
        raise BadRequest("say either PROJECT OLD NEW or --list FILE")
    if listing is None:
        if len(what) != 3:
            raise BadRequest("PROJECT OLD NEW are three words", hint="such as: sandlot tasks from-releases click 8.3.0 8.3.1")
        return [Recipe(project=what[0], old=what[1], new=what[2])]
    read = read_rows(listing, decode_recipe)
    for error in read.errors:
        say(f"{error}; this row is left out")
    if read.errors and not read.rows:
        raise BadRequest(f"{listing} has no row that can be used")
    return read.rows


async def _build_all(recipes: Sequence[Recipe], jobs: int, image: str) -> list[Outcome]:
    turns = asyncio.Semaphore(jobs)
    index = index_of_client()
    cache = cache_dir() / "releases"
    async with local() as provider, Pool(provider, limits=PoolLimits(sandboxes=3 * jobs)) as pool:

        async def one(recipe: Recipe) -> Outcome:
            async with turns:
                try:
                    outcome = Outcome(recipe, await build_task(recipe, pool, index, cache, image=image))
                except SandlotError as error:
                    outcome = Outcome(recipe, None, error)
                except OSError as error:
                    outcome = Outcome(recipe, None, WriteFailed.from_os(error, error.filename or cache))
                _say(outcome)
                return outcome

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(recipe)) for recipe in recipes]
    return [task.result() for task in tasks]


def _say(outcome: Outcome) -> None:
    if outcome.error is not None:
        say(f"{outcome.recipe.id}: {outcome.error}")
    elif outcome.built is not None:
        how = "from the cache" if outcome.built.cached else "built"
        say(f"{outcome.recipe.id}: {how}, {len(outcome.built.calibration.fail_to_pass)} tests repaired")


def _row(outcome: Outcome) -> tuple[object, ...]:
    if outcome.built is None:
        return (outcome.recipe.id, "-", "-", "-", "-", "-")
    found = outcome.built.calibration
    counts = (len(found.fail_to_pass), len(found.pass_to_pass), len(found.unstable), len(found.set_aside))
    return (outcome.recipe.id, *counts, f"{found.seconds:.1f}")


def _described(outcome: Outcome) -> dict[str, object]:
    if outcome.built is None:
        return {"id": outcome.recipe.id, "error": str(outcome.error)}
    found = outcome.built.calibration
    return {
        "id": outcome.recipe.id,
        "cached": outcome.built.cached,
        "fail_to_pass": len(found.fail_to_pass),
        "pass_to_pass": len(found.pass_to_pass),
        "unstable": len(found.unstable),
        "set_aside": len(found.set_aside),
        "seconds": found.seconds,
    }
