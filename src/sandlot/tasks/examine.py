"""One run of a task's tests in a sandbox that is ready for it, and what can be believed of it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import PurePosixPath
from typing import Final

from sandlot.errors import BadRequest, SandboxFileError, Unsupported
from sandlot.result import Result
from sandlot.sandbox import Sandbox
from sandlot.tasks.controls import ControlFile
from sandlot.tasks.place import expected_files
from sandlot.tasks.printed import PARSERS, Parser
from sandlot.tasks.records import MAX_RECORD_BYTES, SECRET_BYTES, read_records
from sandlot.tasks.task import Ending, HowToRun, Outcomes, PrintedRun, PytestRun, Task

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What is run, and where."""

    tree: str
    """Absolute path of the task's tree in the sandbox."""
    run: HowToRun
    paths: tuple[str, ...]
    """Files and directories, relative to the tree, that hold the tests; a printed run does without."""
    limit_s: float

    @classmethod
    def of(cls, task: Task) -> Examination:
        """The files that hold the task's expected tests."""
        return cls(tree=task.tree, run=task.run, paths=tuple(sorted(expected_files(task))), limit_s=task.test_limit_s)


async def run_tests(
    box: Sandbox, what: Examination, *, parsers: Mapping[str, Parser] = PARSERS, control: ControlFile | None = None
) -> Ran:
    """Run the tests once and read how each one ended.

    Raises:
        BadRequest: the row names a parser that nobody has (the caller's fault).
        Infrastructure: the sandbox or the link failed; nothing is known of the tests. Retriable.
    """
    if isinstance(what.run, PrintedRun):
        return await _run_printed(box, what, what.run, parsers)
    return await _run_pytest(box, what, what.run, control)


async def _run_pytest(box: Sandbox, what: Examination, run: PytestRun, control: ControlFile | None) -> Ran:
    secret = secrets.token_bytes(SECRET_BYTES)
    private = f"/tmp/{secrets.token_hex(8)}"
    runner = resources.files("sandlot.tasks.inside").joinpath("run_pytest.py").read_bytes()
    await box.write(f"{private}/run.py", runner)
    if control is not None:
        await box.write(f"{private}/{control.name}", control.source.encode())
    request = {
        "secret": secret.hex(),
        "out": f"{private}/records",
        "tree": what.tree,
        "import_roots": [str(PurePosixPath(what.tree, root)) for root in run.import_roots],
        "control": None if control is None else f"{private}/{control.name}",
        "arguments": [*PYTEST_ARGUMENTS, f"--rootdir={what.tree}", *run.arguments, *what.paths],
    }
    result = await box.exec(
        [run.python, "-I", "-B", f"{private}/run.py"],
        stdin=json.dumps(request).encode(),
        cwd=what.tree,
        timeout=what.limit_s,
        cap=OUTPUT_BYTES,
    )
    try:
        data = await box.read(f"{private}/records", limit=MAX_RECORD_BYTES)
    except (SandboxFileError, Unsupported):  # missing, or something that is no file was put in its place
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


async def _run_printed(box: Sandbox, what: Examination, run: PrintedRun, parsers: Mapping[str, Parser]) -> Ran:
    parser = parsers.get(run.parser)
    if parser is None:
        raise BadRequest(f"no parser {run.parser!r}", hint=f"known are {', '.join(sorted(parsers))}")
    result = await box.exec(run.script, cwd=what.tree, timeout=what.limit_s, merge=True, cap=PRINTED_BYTES)
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
