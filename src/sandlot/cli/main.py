"""Entry point of the `sandlot` command: a group that knows its verbs by name and imports only the one that is called."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

import click

from sandlot.cli.failures import EXIT_CODES, report


class Verb(NamedTuple):
    """Where a verb lives and what the listing says of it."""

    module: str
    help: str


VERBS: Final[dict[str, Verb]] = {
    "run": Verb("sandlot.cli.run", "Run tasks through a pool and judge every rollout."),
    "tasks": Verb("sandlot.cli.tasks", "Make and check task files."),
    "report": Verb("sandlot.cli.report", "Show the results of a run."),
    "exec": Verb("sandlot.cli.exec", "Run one command in a fresh sandbox."),
    "shell": Verb("sandlot.cli.shell", "Open an interactive shell in a sandbox."),
    "ps": Verb("sandlot.cli.ps", "List the sandboxes of this machine, or of a cluster."),
    "gc": Verb("sandlot.cli.gc", "Remove what dead owners left behind."),
    "image": Verb("sandlot.cli.image", "Make and push the images that pods are made from."),
    "manifests": Verb("sandlot.cli.manifests", "Print what a cluster needs for sandboxes, with least rights."),
    "doctor": Verb("sandlot.cli.doctor", "Say what this machine or a cluster can do and what is missing."),
    "bench": Verb("sandlot.cli.bench", "Measure this machine against its own floor."),
    "completion": Verb("sandlot.cli.completion", "Print the completion script of a shell."),
}
"""Every verb; its module holds a click command named `command`."""


class LazyGroup(click.Group):
    """Lists verbs without importing them: `sandlot --help` costs what click costs."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        command: click.Command = importlib.import_module(verb.module).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.help) for name, verb in VERBS.items()])
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in EXIT_CODES.items()])


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"sandlot {version('sandlot')}")
    ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version.")
def cli() -> None:
    """Sandboxes for agentic reinforcement learning: thousands at once, usable at once, none left behind."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        code = cli.main(args=list(arguments), prog_name="sandlot", standalone_mode=False)
    except BaseException as error:  # noqa: BLE001 - the edge of the program: `report` re-raises what is a fault of ours
        code = report(error, as_json="--json" in arguments)
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
