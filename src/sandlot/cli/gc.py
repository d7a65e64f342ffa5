"""`sandlot gc`: remove what dead owners left, and leased sandboxes that are named."""

from __future__ import annotations

import click

from sandlot.backends.local import LocalBackend
from sandlot.backends.local.machine import destroy, find_leased
from sandlot.backends.local.runtime import hosts, runtime_dir
from sandlot.cli.kubernetes import Where, look_options
from sandlot.cli.output import json_option, print_json, say
from sandlot.cli.running import run
from sandlot.errors import BadRequest, CleanupFailed


@click.command("gc")
@click.argument("names", nargs=-1, metavar="[LEASED_SANDBOX...]")
@click.option("--watch", is_flag=True, help="With --kubernetes: go on until interrupted. For a reaper in the cluster.")
@look_options
@json_option
def command(where: Where, names: tuple[str, ...], watch: bool, as_json: bool) -> int:
    """Remove what hosts that were killed left behind, and unpacked layers that were never finished.

    What belongs to a living client is never touched. A leased sandbox is removed before its lease ends when it is named.
    With --kubernetes: what clients left whose leases have run out, and sandboxes without a lease. That a client is dead is
    only believed after some 20 s without a renewal, by the API server's own time.
    """
    if watch and (not where.kubernetes or names):
        raise BadRequest("--watch goes with --kubernetes alone")
    removed = run(_collect_cluster(where, names, watch=watch) if where.kubernetes else _collect(names))
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


async def _collect_cluster(where: Where, names: tuple[str, ...], *, watch: bool) -> dict[str, list[str]]:
    from sandlot.backends.kubernetes.reaper import Reaper
    from sandlot.backends.kubernetes.survey import remove_leased

    async with where.api() as (api, namespace):
        reaper = Reaper(api, namespace)
        if watch:
            say(f"removing what dead clients leave in namespace {namespace}, until interrupted")
            await reaper.run()
        named = [name for name in names if await remove_leased(api, namespace, name)]
        reaped = await reaper.sweep()
    return {"sandbox": [*named, *reaped.sandboxes], "client": list(reaped.clients)}
