"""The whole way from a recipe to a task, cached: the second time nothing is fetched, built or run."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from sandlot.errors import WriteFailed
from sandlot.pool import Pool
from sandlot.sandbox import Sandbox
from sandlot.spec import Spec
from sandlot.tasks.examine import Examination
from sandlot.tasks.releases import inside, trees
from sandlot.tasks.releases.calibrate import calibrate
from sandlot.tasks.releases.index import Index
from sandlot.tasks.releases.recipe import Calibration, Recipe
from sandlot.tasks.swe import LimitsRow, RunRow, SweRow
from sandlot.tasks.task import HiddenTests, PytestRun

FORMAT: Final = 2
"""Raised when the same recipe would come out differently."""

LOCK_PAUSE_S: Final = 0.5

TREE: Final = "/testbed"


@dataclass(frozen=True, slots=True)
class Built:
    """A finished task and where it came from."""

    row: SweRow
    calibration: Calibration
    cached: bool


class _Stored(msgspec.Struct, frozen=True):
    """What is kept beside the directories, as JSON. The row's directories are relative to it."""

    row: SweRow
    calibration: Calibration
    installed: tuple[str, ...]
    sha256: tuple[str, str]


async def build_task(recipe: Recipe, pool: Pool, index: Index, cache: Path, *, image: str = "host") -> Built:
    """The task of a recipe, from the cache or made now. The image is what the task's environment is laid over; it needs
    Python 3 with `venv`, and to be the same wherever the task shall run.

    Building needs a network and takes about a minute; everything that third-party code does happens inside sandboxes.

    Raises:
        BuildFailed: downloading, building or installing failed inside.
        Unsuitable: these releases make no task.
        Infrastructure: a sandbox failed; building again is safe.
    """
    spec = inside.building_spec(index, image)
    async with pool.lease(spec) as box:
        version = await _python_version(box)
        place = cache / f"{recipe.id}-{_key(recipe, version, image)}"
        async with _locked(place):
            stored = _load(place)
            if stored is not None:
                return Built(_located(stored.row, place, recipe), stored.calibration, cached=True)
            with _fresh(place) as work:
                stored = await _build(_Building(recipe, pool, index, image), box, work)
                (work / "task.json").write_bytes(msgspec.json.encode(stored))
    return Built(_located(stored.row, place, recipe), stored.calibration, cached=False)


@dataclass(frozen=True, slots=True)
class _Building:
    """What one task is made from."""

    recipe: Recipe
    pool: Pool
    index: Index
    image: str


async def _build(what_from: _Building, box: Sandbox, work: Path) -> _Stored:
    recipe, index, image = what_from.recipe, what_from.index, what_from.image
    await inside.prepare(box, index)
    old = await inside.fetch(box, recipe.project, recipe.old, recipe.old_sha256)
    new = await inside.fetch(box, recipe.project, recipe.new, recipe.new_sha256)
    await inside.install(box, recipe, old)
    with tempfile.TemporaryDirectory(dir=work) as scratch:
        old_tree, new_tree = Path(scratch, "old"), Path(scratch, "new")
        await inside.bring_out(box, old, old_tree)
        await inside.bring_out(box, new, new_tree)
        layout = trees.find_layout(recipe, old_tree, new_tree)
        difference = await asyncio.to_thread(trees.compare, recipe, layout, old_tree, new_tree)
        await asyncio.to_thread(trees.copy_tests, layout, new_tree, work / "hidden")
    run = PytestRun(python=inside.PYTHON, arguments=recipe.pytest_arguments, import_roots=layout.import_roots)
    what = Examination(tree=TREE, run=run, paths=layout.tests, limit_s=recipe.test_limit_s)
    if recipe.dependencies is None:
        await inside.complete(box, replace(what, tree=new.tree))
    installed = await inside.installed(box)
    await inside.freeze(box, old, work / "layer", TREE)
    hidden = HiddenTests(directory=work / "hidden", removed=difference.removed_tests)
    spec = Spec(image=image, layers=(str(work / "layer"),), env=ENVIRONMENT_OF_TASKS, workdir=TREE)
    found = await calibrate(what_from.pool.lease, spec, what, hidden, difference.patch, versions=(recipe.old, recipe.new))
    row = SweRow(
        instance_id=recipe.id,
        problem_statement=difference.statement,
        patch=difference.patch,
        FAIL_TO_PASS=found.fail_to_pass,
        PASS_TO_PASS=found.pass_to_pass,
        image=image,
        layers=("layer",),
        tree=TREE,
        env=ENVIRONMENT_OF_TASKS,
        hidden_tests="hidden",
        removed_tests=difference.removed_tests,
        run=RunRow(python=run.python, arguments=run.arguments, import_roots=run.import_roots),
    )
    return _Stored(row, found, installed, (old.sha256, new.sha256))


ENVIRONMENT_OF_TASKS: Final = {
    "PATH": f"{inside.ENVIRONMENT}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LANG": "C.UTF-8",
    "PYTHONDONTWRITEBYTECODE": "1",
}


async def _python_version(box: Sandbox) -> str:
    """Of the image's Python, which the environment is bound to."""
    result = await box.exec(["python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], timeout=60, check=True)
    return result.stdout.strip()


def _key(recipe: Recipe, python: str, image: str) -> str:
    recipe = msgspec.structs.replace(recipe, test_limit_s=0.0)  # decides nothing that is kept
    asked = msgspec.json.encode((FORMAT, python, os.uname().machine, recipe, *([] if image == "host" else [image])))
    return hashlib.sha256(asked).hexdigest()[:16]


def _located(row: SweRow, place: Path, recipe: Recipe) -> SweRow:
    """The row with its directories as absolute paths, and with the limits that are wanted now."""
    return msgspec.structs.replace(
        row,
        layers=tuple(str(place / layer) for layer in row.layers),
        hidden_tests=str(place / (row.hidden_tests or "")),
        limits=LimitsRow(test_s=recipe.test_limit_s),
    )


def _load(place: Path) -> _Stored | None:
    try:
        return msgspec.json.decode((place / "task.json").read_bytes(), type=_Stored)
    except (OSError, msgspec.MsgspecError):
        return None


@asynccontextmanager
async def _locked(place: Path) -> AsyncIterator[None]:
    """One builder for a task at a time, on this machine; the others find it built."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(f"{place}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise WriteFailed.from_os(error, place) from error
    try:
        while not _lock_nowait(file):  # noqa: ASYNC110 - another process holds it, and a wait in a thread cannot be cancelled
            await asyncio.sleep(LOCK_PAUSE_S)
        yield
    finally:
        os.close(file)


def _lock_nowait(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _fresh(place: Path) -> Iterator[Path]:
    """A directory that becomes `place` when the block ends well, and goes away otherwise."""
    work = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        yield work
        shutil.rmtree(place, ignore_errors=True)
        work.rename(place)
    finally:
        shutil.rmtree(work, ignore_errors=True)
