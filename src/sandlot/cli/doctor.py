"""`sandlot doctor`: what this machine or a cluster can do, what is missing and how to get it, whether a sandbox works."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import click

from sandlot.backends.local import LocalBackend
from sandlot.cli.kubernetes import Where, where_options
from sandlot.cli.output import json_option, print_json, print_table
from sandlot.cli.running import run
from sandlot.errors import BadRequest, SandlotError
from sandlot.provider import Provider
from sandlot.spec import Spec


@dataclass(frozen=True, slots=True)
class Missing:
    """Something this machine does not offer."""

    what: str
    why: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Findings:
    """What was found."""

    works: bool
    """A sandbox was made, ran a command with limits in force, and is gone."""
    mode: str
    first_command_ms: float | None
    facts: dict[str, str]
    missing: list[Missing]
    problem: str = ""


@click.command("doctor")
@click.option("--probe", is_flag=True, help="With --kubernetes: try real sandboxes, each way to them; `auto` then knows.")
@where_options
@json_option
def command(where: Where, probe: bool, as_json: bool) -> int:
    """Look at this machine and try one sandbox on it. Exit code 0 when that works, 3 when it does not.

    With --kubernetes: look at a cluster, and say what is in the way of a burst, what each thing costs and what to do about
    it. Nothing is made there but for --probe.
    """
    if where.kubernetes:
        from sandlot.cli.cluster_doctor import examine

        return examine(where, probe=probe, as_json=as_json)
    if probe:
        raise BadRequest("--probe goes with --kubernetes", hint="without it one sandbox is tried in any case")
    findings = run(_examine())
    if as_json:
        print_json(asdict(findings))
    else:
        _show(findings)
    return 0 if findings.works else 3


async def _examine() -> Findings:
    backend = LocalBackend()
    try:
        provider = Provider(backend)
        await provider.start()
    except SandlotError as error:
        return Findings(False, "none", None, {}, [Missing("a host", error.message, error.hint)], problem=error.message)
    try:
        probed = await backend.probe()
        problem, took_ms = await _try_one(provider)
    finally:
        await provider.aclose()
    missing = [Missing(item.what, item.why, item.remedy) for item in probed.missing]
    return Findings(not problem, probed.mode, took_ms, dict(sorted(probed.facts.items())), missing, problem)


async def _try_one(provider: Provider) -> tuple[str, float | None]:
    """What went wrong, or nothing and the milliseconds from asking to the end of the first command."""
    began = time.perf_counter()
    try:
        async with await provider.create(Spec(image="host", memory="64MiB", limits="best-effort")) as box:
            took_ms = (time.perf_counter() - began) * 1000
            result = await box.exec(["/bin/sh", "-c", "echo works"])
    except SandlotError as error:
        return str(error), None
    if result.stdout != "works\n":
        return f"a command ended with exit code {result.exit_code}: {result.stderr[:200]}", None
    return "", took_ms


def _show(findings: Findings) -> None:
    facts = [(name, value) for name, value in findings.facts.items() if name != "mode"]  # said already
    state = f"works, first command after {findings.first_command_ms:.1f} ms" if findings.works else findings.problem
    print_table(("WHAT", "FOUND"), [("sandbox", state), ("id mode", findings.mode), *facts])
    if findings.missing:
        print()
        print_table(("MISSING", "WHY", "REMEDY"), [(item.what, item.why, item.remedy) for item in findings.missing])
