"""`sandlot bench`: what Sandlot costs on this machine, against a floor taken in the same run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import click

from sandlot.bench.table import COLUMNS, Table, plot
from sandlot.cli.grouping import Verbs
from sandlot.cli.output import json_option, print_json, print_table, say
from sandlot.cli.running import run

_plot_option = click.option("--plot", "picture", type=click.Path(path_type=Path, dir_okay=False), help="Also draw FILE.svg.")

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _on_cluster(command: _Command) -> _Command:
    """Options of every benchmark on a cluster."""
    for option in (
        click.option("--image", default="busybox:1", show_default=True, help="Task image, with a shell and sleep; dir: too."),
        click.option("--kubernetes", is_flag=True, required=True, help="On the cluster that the kubeconfig names."),
    ):
        command = option(command)
    return command


_advertise_option = click.option(
    "--advertise", help="This machine, as the cluster's pods see it [default: found by the way to them]."
)


@click.group("bench", cls=Verbs)
def command() -> None:
    """Measure this machine against its own floor. The numbers to compare are the ratios."""


@command.command("noop")
@click.option("--blocks", default=40, show_default=True, type=click.IntRange(20), help="Pairs of floor and candidate blocks.")
@click.option("--size", default=25, show_default=True, type=click.IntRange(1), help="Commands in a block.")
@click.option("--sandboxes", default=64, show_default=True, type=click.IntRange(1), help="Sandboxes used at once.")
@click.option(
    "--soak", default=20_000, show_default=True, type=click.IntRange(1), help="Commands between two looks at what is held."
)
@json_option
@_plot_option
def noop(blocks: int, size: int, sandboxes: int, soak: int, as_json: bool, picture: Path | None) -> int:
    """Commands that do nothing, checked one by one."""
    from sandlot.bench.noop import measure

    return _finish(measure(blocks=blocks, size=size, sandboxes=sandboxes, soak=soak), as_json, picture)


@command.command("create")
@click.option("--blocks", default=20, show_default=True, type=click.IntRange(20), help="Pairs of floor and candidate blocks.")
@click.option("--size", default=5, show_default=True, type=click.IntRange(1), help="Sandboxes in a block.")
@click.option("--burst", default=200, show_default=True, type=click.IntRange(1), help="Sandboxes asked for at once.")
@json_option
@_plot_option
def create(blocks: int, size: int, burst: int, as_json: bool, picture: Path | None) -> int:
    """Sandboxes made, used once and destroyed."""
    from sandlot.bench.create import measure

    return _finish(measure(blocks=blocks, size=size, burst=burst), as_json, picture)


@command.command("density")
@click.option("--count", default=500, show_default=True, type=click.IntRange(1), help="Sandboxes alive at once.")
@click.option(
    "--idle", default=60.0, show_default=True, type=click.FloatRange(0), help="Seconds of nothing before all are asked."
)
@json_option
@_plot_option
def density(count: int, idle: float, as_json: bool, picture: Path | None) -> int:
    """Many sandboxes alive at once, each with a job and files."""
    from sandlot.bench.density import measure

    return _finish(measure(count=count, idle_s=idle, progress=say), as_json, picture)


@command.command("reset")
@click.option("--times", default=200, show_default=True, type=click.IntRange(20), help="Episodes in a row in one sandbox.")
@click.option("--files", default=2000, show_default=True, type=click.IntRange(1), help="Files changed by each.")
@json_option
@_plot_option
def reset(times: int, files: int, as_json: bool, picture: Path | None) -> int:
    """One sandbox used again and again."""
    from sandlot.bench.reset import measure

    return _finish(measure(times=times, files=files), as_json, picture)


@command.command("burst")
@_on_cluster
@_advertise_option
@click.option("--requests", default=1000, show_default=True, type=click.IntRange(1), help="Sandboxes asked for at once.")
@click.option("--clients", default=4, show_default=True, type=click.IntRange(1), help="Processes that ask.")
@click.option("--real/--fake-nodes", "real", default=True, help="Nodes that run containers, or kwok's [default: real].")
@click.option("--skew", is_flag=True, help="Shares of 7:1:1:1, asked for one after another.")
@click.option("--connect", default="dial-in", show_default=True, type=click.Choice(["dial-in", "dial-out"]))
@click.option("--rounds", default=1, show_default=True, type=click.IntRange(1), help="Pairs of plain pods and sandboxes.")
@click.option(
    "--fleet", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="What plays the daemons of fake nodes."
)
@click.option("--raw", type=click.Path(path_type=Path, dir_okay=False), help="Write every client's moments to FILE.jsonl.")
@json_option
@_plot_option
def burst(
    *,
    kubernetes: bool,
    image: str,
    advertise: str | None,
    requests: int,
    clients: int,
    real: bool,
    skew: bool,
    connect: Literal["dial-in", "dial-out"],
    rounds: int,
    fleet: Path | None,
    raw: Path | None,
    as_json: bool,
    picture: Path | None,
) -> int:
    """Many sandboxes asked for at once by several processes, in turn with as many plain pods."""
    from sandlot.bench.kubernetes.burst import Burst
    from sandlot.bench.kubernetes.burst_table import measure
    from sandlot.bench.kubernetes.fleet import built_fleet

    wanted = Burst(
        requests=requests,
        clients=clients,
        nodes="real" if real else "fake",
        connect=connect,
        image=image,
        advertise=advertise,
        skew=skew,
        rounds=rounds,
        fleet=None if real else fleet or built_fleet(),
    )
    return _finish(measure(wanted, progress=say, raw=raw), as_json, picture)


@command.command("exec")
@_on_cluster
@_advertise_option
@click.option("--blocks", default=20, show_default=True, type=click.IntRange(20), help="Blocks of each way, in turn.")
@click.option("--size", default=25, show_default=True, type=click.IntRange(1), help="Commands in a block.")
@json_option
@_plot_option
def exec_(
    *,
    kubernetes: bool,
    image: str,
    advertise: str | None,
    blocks: int,
    size: int,
    as_json: bool,
    picture: Path | None,
) -> int:
    """Commands that do nothing, by each way into a pod, beside this machine and the API server's own exec stream."""
    from sandlot.bench.kubernetes.exec import Commands, measure

    wanted = Commands(blocks=blocks, size=size, image=image, advertise=advertise)
    return _finish(measure(wanted, progress=say), as_json, picture)


@command.command("pool")
@_on_cluster
@click.option("--rollouts", default=128, show_default=True, type=click.IntRange(1), help="Leases in all.")
@click.option("--concurrency", default=4, show_default=True, type=click.IntRange(1), help="Leases at a time.")
@json_option
@_plot_option
def pool(
    *,
    kubernetes: bool,
    image: str,
    rollouts: int,
    concurrency: int,
    as_json: bool,
    picture: Path | None,
) -> int:
    """Rollouts through a pool of pods: how soon each has a sandbox, and how many pods that takes."""
    from sandlot.bench.kubernetes.pool import Rollouts, measure

    wanted = Rollouts(
        count=rollouts,
        concurrency=concurrency,
        image=image,
    )
    return _finish(measure(wanted, progress=say), as_json, picture)


@command.command("client")
@click.option("--kubernetes", is_flag=True, required=True, help="Pods, of a stand-in for a cluster on this machine.")
@click.option("--sandboxes", default=10_000, show_default=True, type=click.IntRange(1), help="Held at once by one process.")
@click.option("--connect", default="dial-in", show_default=True, type=click.Choice(["dial-in", "dial-out"]))
@click.option(
    "--idle", default=0.0, show_default=True, type=click.FloatRange(0), help="Seconds of nothing before they are deleted."
)
@click.option("--fleet", type=click.Path(path_type=Path, exists=True, dir_okay=False), help="What plays the daemons.")
@json_option
@_plot_option
def client(
    *,
    kubernetes: bool,
    sandboxes: int,
    connect: Literal["dial-in", "dial-out"],
    idle: float,
    fleet: Path | None,
    as_json: bool,
    picture: Path | None,
) -> int:
    """CPU and memory that one process spends on many sandboxes, beside as many plain pods. Needs no cluster."""
    from sandlot.bench.kubernetes.cost import Client, measure
    from sandlot.bench.kubernetes.fleet import built_fleet

    wanted = Client(sandboxes=sandboxes, connect=connect, idle_s=idle, fleet=fleet or built_fleet())
    return _finish(measure(wanted, progress=say), as_json, picture)


def _finish(measuring: Awaitable[Table], as_json: bool, picture: Path | None) -> int:
    table = run(_awaited(measuring))
    if as_json:
        print_json(table.document())
    else:
        print_table(COLUMNS, table.cells())
        say(f"benchmark {table.benchmark} on {table.machine}")
    if picture is not None:
        plot(table, picture)
        say(f"plot written to {picture}")
    return 0


async def _awaited(measuring: Awaitable[Table]) -> Table:
    return await measuring
