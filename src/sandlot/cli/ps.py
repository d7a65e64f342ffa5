"""`sandlot ps`: the sandboxes of this user on this machine, whoever made them."""

from __future__ import annotations

import time
from dataclasses import asdict

import click

from sandlot.backends.local.machine import Found, survey
from sandlot.backends.local.runtime import runtime_dir
from sandlot.cli.output import duration, json_option, print_json, print_table, say
from sandlot.cli.running import run

_COLUMNS = ("NAME", "OWNER", "STATE", "AGE", "LEASE LEFT", "IMAGE", "HOST")


@click.command("ps")
@json_option
def command(as_json: bool) -> int:
    """List sandboxes, attached and leased, and hosts that died and left something behind."""
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
    )
    for host in found:
        if not host.alive:
            say(f"host {host.host} is dead and left something behind; `sandlot gc` removes it")
        elif host.problem:
            say(f"host {host.host} does not answer: {host.problem}")
