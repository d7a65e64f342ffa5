"""The options that say what sandbox is wanted, shared by `exec` and `shell`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from sandlot.errors import BadRequest
from sandlot.spec import Spec

_OPTIONS = (
    click.option("-e", "--env", "env", multiple=True, metavar="KEY=VALUE", help="A variable; KEY alone takes this shell's."),
    click.option("-w", "--cwd", help="The working directory.  [default: the image's]"),
    click.option("-u", "--user", help="NAME, UID, NAME:GROUP or UID:GID.  [default: the image's]"),
    click.option("-m", "--memory", metavar="SIZE", help="Memory for all commands together, such as 512MiB."),
    click.option("--cpu", type=float, metavar="CPUS", help="Processors, such as 1.5."),
    click.option("--pids", type=int, default=4096, show_default=True, help="Processes and threads at once."),
    click.option("--disk", metavar="SIZE", default="1GiB", show_default=True, help="What may be written."),
    click.option("--upper", type=click.Choice(["tmpfs", "disk"]), default="tmpfs", show_default=True, help="Where it is kept."),
    click.option("--network", type=click.Choice(["none", "host"]), default="none", show_default=True),
    click.option("--read-only", is_flag=True, help="A root file system that cannot be written to."),
    click.option("--best-effort", is_flag=True, help="Go on without limits that this machine cannot enforce."),
)
_NAMES = ("env", "cwd", "user", "memory", "cpu", "pids", "disk", "upper", "network", "read_only", "best_effort")


def spec_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options; the command gets them and its `image` as one argument, `spec`."""

    @wraps(command)
    def with_spec(image: str, **params: Any) -> Any:
        options = {name: params.pop(name) for name in _NAMES}
        return command(spec=_spec(image, options), **params)

    for option in reversed(_OPTIONS):
        with_spec = option(with_spec)
    return with_spec


def _spec(image: str, options: dict[str, Any]) -> Spec:
    return Spec(
        image=image,
        env=parse_env(options["env"]),
        workdir=options["cwd"],
        user=options["user"],
        memory=options["memory"],
        cpu=options["cpu"],
        pids=options["pids"],
        disk=options["disk"],
        upper=options["upper"],
        network=options["network"],
        read_only=options["read_only"],
        limits="best-effort" if options["best_effort"] else "require",
    )


def parse_env(entries: tuple[str, ...]) -> dict[str, str]:
    """`KEY=VALUE` entries, and `KEY` alone for a variable of this process, handed on because it was named.

    Raises:
        BadRequest: a variable is named that this process does not have.
    """
    env: dict[str, str] = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals and key not in os.environ:
            raise BadRequest(f"--env {key}: there is no such variable here", hint="write KEY=VALUE")
        env[key] = value if equals else os.environ[key]
    return env
