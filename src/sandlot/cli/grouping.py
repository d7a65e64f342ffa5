"""Groups of verbs whose help says of each in full what it does."""

from __future__ import annotations

from typing import Final

import click

_WHOLE: Final = 1000  # characters: no first sentence is longer


class Verbs(click.Group):
    """As `click.Group`, but nothing is cut to fit into one line."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, one.get_short_help_str(_WHOLE)) for name, one in commands if one is not None])
