"""`sandlot gc`: remove what dead owners left, and leased sandboxes that are named."""

from __future__ import annotations

import click

from sandlot.backends.local import LocalBackend
from sandlot.backends.local.machine import destroy, find_leased
from sandlot.backends.local.runtime import hosts, runtime_dir
from sandlot.cli.output import json_option, print_json, say
from sandlot.cli.running import run
from sandlot.errors import CleanupFailed


@click.command("gc")
@click.argument("names", nargs=-1, metavar="[LEASED_SANDBOX...]")
@json_option
def command(names: tuple[str, ...], as_json: bool) -> int:
    """Remove what hosts that were killed left behind, and unpacked layers that were never finished.

    What belongs to a living client is never touched. A leased sandbox is removed before its lease ends when it is named.
    """
    removed = run(_collect(names))
    if as_json:
        print_json(removed)
    else:
        for kind, items in removed.items():
            for item in items:
                say(f"removed {kind} {item}")
        if not any(removed.values()):
            say("nothing to remove")
    return 0


async def _collect(names: tuple[str, ...]) -> dict[str, list[str]]:
    directory = runtime_dir()
    sandboxes = [name for name in names if await destroy(await find_leased(directory, name), name)]
    backend = LocalBackend()
    await backend.start()  # a host removes what dead ones left before it is ready
    try:
        swept = list(backend.swept)
        layers = list(await backend.sweep_cache())
    finally:
        await backend.aclose()
    left = [host.id for host in hosts(directory) if not host.alive]
    if left:
        raise CleanupFailed(f"could not remove all that these dead hosts left: {', '.join(left)}", left=left)
    return {"sandbox": sandboxes, "host": swept, "layer": layers}
