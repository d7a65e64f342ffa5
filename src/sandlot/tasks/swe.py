"""Rows in the usual SWE form: instance_id, image, problem_statement, patch, test_patch, FAIL_TO_PASS, PASS_TO_PASS.

Only these names are needed. What other data sets leave out has the default that they share (`/testbed`, pytest); what they
add is ignored. Optional names of ours: `layers`, `tree`, `hidden_tests`, `removed_tests`, `run`, `limits`, and those of `Spec`.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from sandlot.errors import BadRequest
from sandlot.spec import Spec
from sandlot.tasks.patch import parse_patch
from sandlot.tasks.rows import RowError, RowsRead, read_rows
from sandlot.tasks.task import DEFAULT_TEST_LIMIT_S, HiddenTests, HowToRun, PrintedRun, PytestRun, Task


class RunRow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """How tests are run: `python`, `arguments` and `import_roots` for pytest, or `script` and `parser` for another runner."""

    python: str = "python"
    arguments: tuple[str, ...] = ()
    import_roots: tuple[str, ...] = (".",)
    script: str | None = None
    parser: str | None = None

    def value(self) -> HowToRun:
        if self.script is None and self.parser is None:
            return PytestRun(python=self.python, arguments=self.arguments, import_roots=self.import_roots)
        if self.script is None or self.parser is None:
            raise BadRequest("run: script and parser come together")
        return PrintedRun(script=self.script, parser=self.parser)


class LimitsRow(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """Seconds for the agent and for one run of the tests; what a sandbox of the task may use."""

    agent_s: float | None = None
    test_s: float = DEFAULT_TEST_LIMIT_S
    cpu: float | None = None
    memory: int | str | None = None
    disk: int | str = "1GiB"


class SweRow(msgspec.Struct, omit_defaults=True):
    """One row as it stands in the file."""

    instance_id: str
    problem_statement: str
    patch: str
    FAIL_TO_PASS: tuple[str, ...] | str
    PASS_TO_PASS: tuple[str, ...] | str = ()
    test_patch: str = ""
    image: str | None = None
    image_name: str | None = None
    docker_image: str | None = None
    layers: tuple[str, ...] = ()
    tree: str = "/testbed"
    env: dict[str, str] = {}
    user: str | int | None = None
    hidden_tests: str | None = None
    removed_tests: tuple[str, ...] = ()
    run: RunRow = msgspec.field(default_factory=RunRow)
    limits: LimitsRow = msgspec.field(default_factory=LimitsRow)


def read_tasks(path: str | os.PathLike[str]) -> RowsRead[Task]:
    """The tasks of a file; relative `layers` and `hidden_tests` are relative to it.

    Two rows with one id: the second is an error, the first stays.

    Raises:
        BadRequest: the file cannot be read or is empty. A bad row is in `.errors`, the others are in `.rows`.
    """
    file = Path(path)
    read = read_rows(file, lambda line, number: to_task(line, base=file.parent, origin=f"{file}:{number}"))
    seen: dict[str, str] = {}
    tasks: list[Task] = []
    errors = list(read.errors)
    for task in read.rows:
        if task.id in seen:
            number = int(task.origin.rpartition(":")[2])
            errors.append(RowError(str(file), number, f"instance_id {task.id!r} is taken by {seen[task.id]}"))
        else:
            seen[task.id] = task.origin
            tasks.append(task)
    return RowsRead(tuple(tasks), tuple(sorted(errors, key=lambda error: error.line)))


def to_task(line: bytes, *, base: Path, origin: str = "") -> Task:
    """One row as a task.

    Raises:
        BadRequest, msgspec.MsgspecError: the row is malformed; the message names the field.
    """
    row = msgspec.json.decode(line, type=SweRow)
    image = row.image or row.image_name or row.docker_image
    if not image:
        raise BadRequest("the row names no image", hint="give it an `image`, such as host, dir:PATH or oci:PATH")
    for name, patch in (("patch", row.patch), ("test_patch", row.test_patch)):
        try:
            parse_patch(patch)
        except BadRequest as error:
            raise BadRequest(f"{name}: {error}") from error
    limits = row.limits
    return Task(
        id=row.instance_id,
        spec=Spec(
            image=image,
            layers=tuple(str(_existing(base, layer, "layers")) for layer in row.layers),
            cpu=limits.cpu,
            memory=limits.memory,
            disk=limits.disk,
            env=row.env,
            workdir=row.tree,
            user=row.user,
        ),
        problem=row.problem_statement,
        tree=row.tree,
        gold_patch=row.patch,
        hidden=HiddenTests(
            patch=row.test_patch,
            directory=None if row.hidden_tests is None else _existing(base, row.hidden_tests, "hidden_tests"),
            removed=row.removed_tests,
        ),
        fail_to_pass=_ids(row.FAIL_TO_PASS, "FAIL_TO_PASS"),
        pass_to_pass=_ids(row.PASS_TO_PASS, "PASS_TO_PASS"),
        run=row.run.value(),
        agent_limit_s=limits.agent_s,
        test_limit_s=limits.test_s,
        origin=origin,
    )


def encode_row(row: SweRow) -> bytes:
    """The row as one line of JSON, line end included."""
    return msgspec.json.encode(row) + b"\n"


def _existing(base: Path, name: str, what: str) -> Path:
    path = (base / name).resolve()
    if not path.is_dir():
        raise BadRequest(f"{what}: {name!r} is no directory", hint="make the task again, or correct the path")
    return path


def _ids(value: Any, what: str) -> tuple[str, ...]:
    """Test ids from a list or from JSON text of one; order kept, doubles dropped."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(value, type=list[str])
        except msgspec.MsgspecError as error:
            raise BadRequest(f"{what} is neither a list of test ids nor JSON text of one: {error}") from error
    return tuple(dict.fromkeys(value))
