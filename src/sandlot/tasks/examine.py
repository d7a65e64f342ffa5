"""One run of a task's tests in a sandbox that is ready for it, and what can be believed of it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath
from typing import Final

from sandlot.errors import BadRequest, SandboxFileNotFound
from sandlot.result import Result
from sandlot.sandbox import Sandbox
from sandlot.tasks.controls import ControlFile
from sandlot.tasks.place import expected_files
from sandlot.tasks.printed import Parser
from sandlot.tasks.records import MAX_RECORD_BYTES, SECRET_BYTES, read_records
from sandlot.tasks.task import Ending, Outcomes, PrintedRun, PytestRun, Task

OUTPUT_BYTES: Final = 65_536
"""Kept of what the tests print: for people only. A printed report may be longer, see `PRINTED_BYTES`."""

PRINTED_BYTES: Final = 16_777_216
"""Kept of a report that must be parsed."""

PYTEST_ARGUMENTS: Final = ("-q", "--tb=short", "--maxfail=0", "--continue-on-collection-errors", "-p", "no:cacheprovider")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """One run of the tests."""

    outcomes: Outcomes
    cut_short: str = ""
    """Why the run is known not to be whole, or empty."""
    timed_out: bool = False
    seconds: float = 0.0
    collect_errors: Mapping[str, str]
    output: str = ""
    """Untrusted text: the end of what was printed."""


async def run_tests(box: Sandbox, task: Task, *, parsers: Mapping[str, Parser], control: ControlFile | None = None) -> Ran:
    """Run the files that hold the task's expected tests, once, and read each test's ending.

    Raises:
        BadRequest: the row names a parser that nobody has (the caller's fault).
        Infrastructure: the sandbox or the link failed; nothing is known of the tests. Retriable.
    """
    if isinstance(task.run, PrintedRun):
        return await _run_printed(box, task, task.run, parsers)
    return await _run_pytest(box, task, task.run, control)


async def _run_pytest(box: Sandbox, task: Task, run: PytestRun, control: ControlFile | None) -> Ran:
    secret = secrets.token_bytes(SECRET_BYTES)
    private = f"/tmp/{secrets.token_hex(8)}"
    runner = resources.files("sandlot.tasks.inside").joinpath("run_pytest.py").read_bytes()
    await box.write(f"{private}/run.py", runner)
    if control is not None:
        await box.write(f"{private}/{control.name}", control.source.encode())
    request = {
        "secret": secret.hex(),
        "out": f"{private}/records",
        "tree": task.tree,
        "import_roots": [str(PurePosixPath(task.tree, root)) for root in run.import_roots],
        "control": None if control is None else f"{private}/{control.name}",
        "arguments": [*PYTEST_ARGUMENTS, f"--rootdir={task.tree}", *run.arguments, *sorted(expected_files(task))],
    }
    result = await box.exec(
        [run.python, "-I", "-B", f"{private}/run.py"],
        stdin=json.dumps(request).encode(),
        cwd=task.tree,
        timeout=task.test_limit_s,
        cap=OUTPUT_BYTES,
    )
    try:
        data = await box.read(f"{private}/records", limit=MAX_RECORD_BYTES)
    except SandboxFileNotFound:
        data = b""
    records = read_records(data, secret)
    return Ran(
        outcomes=records.outcomes,
        cut_short=_cut_short(result, "" if records.complete else records.broken),
        timed_out=result.timed_out,
        seconds=result.usage.wall_s,
        collect_errors=records.collect_errors,
        output=_tail(result),
    )


async def _run_printed(box: Sandbox, task: Task, run: PrintedRun, parsers: Mapping[str, Parser]) -> Ran:
    parser = parsers.get(run.parser)
    if parser is None:
        raise BadRequest(f"{task.id}: no parser {run.parser!r}", hint=f"known are {', '.join(sorted(parsers))}")
    result = await box.exec(run.script, cwd=task.tree, timeout=task.test_limit_s, merge=True, cap=PRINTED_BYTES)
    whole = "" if not result.truncated else f"the report is longer than {PRINTED_BYTES} bytes"
    outcomes: Mapping[str, Ending] = parser(result.stdout)
    return Ran(
        outcomes=outcomes,
        cut_short=_cut_short(result, whole),
        timed_out=result.timed_out,
        seconds=result.usage.wall_s,
        collect_errors={},
        output=_tail(result),
    )


def _cut_short(result: Result, why: str) -> str:
    """How a run that is not whole ended, as far as the exit tells: it only explains, it never decides."""
    if result.timed_out:
        return "the tests took longer than their limit"
    if result.oom_killed:
        return "the tests used more memory than there is"
    if why and result.signal is not None:
        return f"{why} (signal {result.signal})"
    return why


def _tail(result: Result) -> str:
    return (result.stdout + result.stderr)[-4_000:]
