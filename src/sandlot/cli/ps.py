"""`sandlot ps`: the sandboxes of this user on this machine, or all of a cluster's namespace, whoever made them."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from sandlot.backends.local.machine import Found, survey
from sandlot.backends.local.runtime import runtime_dir
from sandlot.cli.kubernetes import Where, look_options
from sandlot.cli.output import duration, json_option, print_json, print_table, say
from sandlot.cli.running import run

if TYPE_CHECKING:
    from sandlot.backends.kubernetes.survey import Survey

_COLUMNS = ("NAME", "OWNER", "STATE", "AGE", "LEASE LEFT", "IMAGE", "HOST")
_CLUSTER_COLUMNS = ("NAME", "OWNER", "STATE", "AGE", "LEASE LEFT", "IMAGE", "NODE", "CLIENT", "GC")
_CLIENT_COLUMNS = ("CLIENT", "WHO", "SANDBOXES", "LEASE LEFT")
_FATES = {"stays": "stays", "expired": "removes it: the lease has run out", "orphan": "removes it: there is no lease"}


@click.command("ps")
@look_options
@json_option
def command(where: Where, as_json: bool) -> int:
    """List sandboxes, attached and leased, and hosts that died and left something behind.

    With --kubernetes: those of all clients of the namespace, their leases, and what `sandlot gc --kubernetes` would do.
    """
    if where.kubernetes:
        seen = run(_look(where))
        if as_json:
            print_json(asdict(seen))
        else:
            _show_cluster(seen)
        return 0
    found = run(survey(runtime_dir()))
    if as_json:
        print_json({"hosts": [asdict(host) for host in found]})
    else:
        _show(found)
    return 0


def _show(found: list[Found]) -> None:
    now = time.time()
    print_table(
        _COLUMNS,
        [
            (box.name, box.owner, box.state, duration(now - box.created_s), duration(box.lease_left_s), box.image, host.host)
            for host in found
            for box in host.sandboxes
        ],
        long="IMAGE",
    )
    for host in found:
        if not host.alive:
            say(f"host {host.host} is dead and left something behind; `sandlot gc` removes it")
        elif host.problem:
            say(f"host {host.host} does not answer: {host.problem}")


async def _look(where: Where) -> Survey:
    from sandlot.backends.kubernetes.survey import survey as look

    async with where.api() as (api, namespace):
        return await look(api, namespace)


def _show_cluster(seen: Survey) -> None:
    now = time.time()
    rows = [
        (
            one.info.name, one.info.owner, one.info.state, duration(max(now - one.info.created_s, 0)),
            _left(one.info.lease_left_s), one.info.image, one.node or "-", one.client, _FATES[one.fate],
        )
        for one in seen.sandboxes
    ]  # fmt: skip
    print_table(_CLUSTER_COLUMNS, rows, long="IMAGE")
    print()
    clients = [(one.id, one.holder, one.sandboxes, _left(one.lease_left_s)) for one in seen.clients]
    print_table(_CLIENT_COLUMNS, clients)
    dead = [one.id for one in seen.clients if not one.alive]
    lost = [one.info.name for one in seen.sandboxes if one.fate != "stays"]
    if dead or lost:
        what = f"{len(dead)} clients are dead and {len(lost)} sandboxes are left of them or of nobody"
        say(f"{what}; `sandlot gc --kubernetes --namespace {seen.namespace}` removes that")


def _left(seconds: float | None) -> str:
    return "run out" if seconds is not None and seconds <= 0 else duration(seconds)
