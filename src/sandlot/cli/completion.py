"""`sandlot completion SHELL`: the script that makes a shell complete Sandlot's verbs and options."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_HOW = {
    "bash": 'eval "$(sandlot completion bash)"   # in ~/.bashrc',
    "zsh": 'eval "$(sandlot completion zsh)"   # in ~/.zshrc',
    "fish": "sandlot completion fish | source   # in ~/.config/fish/config.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(list(_HOW)))
def command(shell: str) -> None:
    """Print the completion script for SHELL; how to use it is said on standard error."""
    from sandlot.cli.main import cli

    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"no completion is known for {shell}")
    click.echo(kind(cli, {}, "sandlot", "_SANDLOT_COMPLETE").source())
    click.echo(_HOW[shell], err=True)
