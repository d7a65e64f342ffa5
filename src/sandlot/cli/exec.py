"""`sandlot exec`: one command in a fresh sandbox, its output as it comes, its exit code as our own."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import Final

import click

from sandlot.cli.failures import own_failures
from sandlot.cli.kubernetes import Where, where_options
from sandlot.cli.output import json_option, print_json, say
from sandlot.cli.running import run
from sandlot.cli.stdio import pass_on, read_all, write_all
from sandlot.cli.wanted import spec_options
from sandlot.errors import BadRequest
from sandlot.provider import Provider
from sandlot.result import Result
from sandlot.spec import Spec

TIMED_OUT: Final = 124  # as the `timeout` command says it


@click.command("exec", context_settings={"allow_interspersed_args": False})
@click.argument("image")
@click.argument("argv", nargs=-1, type=click.UNPROCESSED, metavar="[--] [COMMAND...]")
@click.option("-c", "--script", help="Text for the image's own sh, in place of COMMAND.")
@click.option("-t", "--timeout", type=float, metavar="SECONDS", help="Kill the command and all it started after this long.")
@click.option("-i", "--stdin", "with_stdin", is_flag=True, help="Pass standard input on; without it the command reads nothing.")
@json_option
@spec_options
@where_options
def command(
    where: Where,
    spec: Spec,
    argv: tuple[str, ...],
    script: str | None,
    timeout: float | None,
    with_stdin: bool,
    as_json: bool,
) -> int:
    """Run COMMAND in a fresh sandbox made from IMAGE, which is gone afterwards (owner: attached).

    IMAGE is `host`, dir:PATH, oci:PATH[@REF], oci-archive:PATH[@REF] or a path; with --kubernetes, an image of a registry, or
    one of these (not `host`), which is then published first. Options stand before it. Standard output and
    standard error are the command's own bytes. The exit code is the command's, 128 + the signal that ended it, or 124 when
    its time was up; 125 is Sandlot's own failure.
    """
    argv = argv[1:] if argv[:1] == ("--",) else argv
    if (script is None) == (not argv):
        hint = "sandlot exec host ls -l, or sandlot exec -c 'ls | wc' host"
        raise BadRequest("say either COMMAND or --script TEXT", hint=hint)
    if argv and argv[0].startswith("-"):
        hint = "options stand before IMAGE; all that follows it is the command"
        raise BadRequest(f"{argv[0]!r} is no command", hint=hint)
    what: str | list[str] = list(argv) if script is None else script
    work = _collect if as_json else _stream
    with own_failures():
        result = run(work(where.provider(where.of_one()), spec, what, timeout, with_stdin))
    if as_json:
        print_json(_described(result))
    elif result.timed_out:
        say(f"timed out after {result.usage.wall_s:.3g} s; all its processes were killed")
    elif result.oom_killed:
        say("killed for memory; ask for more with --memory")
    return TIMED_OUT if result.timed_out else result.exit_code


async def _stream(opened: Provider, spec: Spec, what: str | list[str], timeout: float | None, with_stdin: bool) -> Result:
    source = sys.stdin.fileno() if with_stdin else None
    async with (
        opened as provider,
        await provider.create(spec) as box,
        box.stream(what, timeout=timeout, stdin_open=with_stdin) as stream,
    ):
        async with pass_on(source, stream):
            async for chunk in stream:
                write_all(1 if chunk.stream == "stdout" else 2, chunk.data)
        return stream.result


async def _collect(opened: Provider, spec: Spec, what: str | list[str], timeout: float | None, with_stdin: bool) -> Result:
    stdin = await read_all(sys.stdin.fileno()) if with_stdin else None
    async with opened as provider, await provider.create(spec) as box:
        return await box.exec(what, timeout=timeout, stdin=stdin)


def _described(result: Result) -> dict[str, object]:
    """The result as JSON has it; bytes that are no UTF-8 show as U+FFFD."""
    return {
        "exit_code": TIMED_OUT if result.timed_out else result.exit_code,
        "code": result.code,
        "signal": result.signal,
        "timed_out": result.timed_out,
        "oom_killed": result.oom_killed,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "stdout_bytes": result.out.total_bytes,
        "stderr_bytes": result.err.total_bytes,
        "truncated": result.truncated,
        "usage": asdict(result.usage),
        "unenforced": result.unenforced,
    }
