"""`python -m cluster up|down|status`."""

import signal
import sys
from pathlib import Path
from types import FrameType

import click

from cluster import build, down, kubeconfig, needs, parts, starting, state, toolrun, up
from cluster.options import NODE_GRACE_S, Options
from cluster.say import Say

_INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_FAULTS = (up.UpError, toolrun.BuildError, starting.StartError, needs.NeedError, state.ClaimError)

_name = click.option("--name", default="main", show_default=True, help="Which cluster; several run side by side.")
_runtimes = click.option("--runtimes", multiple=True, type=click.Choice(["gvisor"]), help="Container runtimes besides runc.")
_policies = click.option("--policies/--no-policies", default=False, show_default=True, help="Enforce NetworkPolicies.")


@click.group()
def main() -> None:
    """A real Kubernetes on this machine, for tests, benchmarks and examples."""
    for signum in _INTERRUPTS:
        signal.signal(signum, _interrupt)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Undo what was begun, and do not be interrupted in that, which takes half a minute at most."""
    for each in _INTERRUPTS:
        signal.signal(each, signal.SIG_IGN)
    raise KeyboardInterrupt


@main.command("up")
@_name
@click.option(
    "--fake-nodes", default=0, show_default=True, type=click.IntRange(0, 5000), help="Nodes that only seem to run pods."
)
@_runtimes
@_policies
@click.option("--node-grace", default=NODE_GRACE_S, show_default=True, help="Seconds of silence after which a node is lost.")
@click.option(
    "--merge/--no-merge", default=True, show_default=True, help="Put its context into your kubeconfig and make it current."
)
def up_(*, name: str, fake_nodes: int, runtimes: tuple[str, ...], policies: bool, node_grace: int, merge: bool) -> None:
    """Build what is missing, start a cluster, wait until it takes pods. One that runs is left as it is."""
    wanted = up.Wanted(name, fake_nodes, Options(runtimes, policies, node_grace), kubeconfig.users_file() if merge else None)
    try:
        up.up(wanted, Say())
    except _FAULTS as error:
        raise click.ClickException(str(error)) from error


@main.command("build")
@_runtimes
@_policies
def build_(*, runtimes: tuple[str, ...], policies: bool) -> None:
    """Only build what `up` with these options needs."""
    say, options = Say(), Options(runtimes, policies)
    try:
        needs.provide(options, say)
        build.build(parts.parts(options), say)
    except _FAULTS as error:
        raise click.ClickException(str(error)) from error
    say("all parts are built")


@main.command("down")
@_name
def down_(name: str) -> None:
    """Stop a cluster and remove everything of it."""
    left = down.down(name, Say())
    if left is None:
        click.echo(f"no cluster {name}", err=True)
    elif left:
        raise click.ClickException(f"not everything could be removed: {left}")


@main.command("status")
@click.option("--name", default=None, help="One cluster only; its exit status is 1 when it does not run.")
def status(name: str | None) -> None:
    """Which clusters there are, and how their components do."""
    names = [name] if name else state.names()
    if not names:
        click.echo("no cluster")
    running = [_tell(one) for one in names]
    sys.exit(0 if all(running) or not name else 1)


def _tell(name: str) -> bool:
    found = state.load(name)
    if found is None:
        click.echo(f"{name}: no such cluster")
        return False
    here = found.boot == state.boot_id()
    click.echo(f"{name}: {'up' if up.runs(found) else 'not whole'}")
    click.echo(
        f"  kubeconfig {found.layout.kubeconfig}\n  registry   {found.layout.registry}\n  gateway    {found.layout.gateway}"
    )
    for component, identity in found.processes.items():
        click.echo(f"  {component:20} {identity.pid:8} {'alive' if here and identity.alive() else 'ended'}")
    return up.runs(found)


if __name__ == "__main__":
    main(prog_name=f"{Path(sys.executable).name} -m cluster")
