"""Options that choose a cluster."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from sandlot.backends.kubernetes import ClusterOptions
from sandlot.cli.kubernetes import Where, where_options
from sandlot.errors import BadRequest


def where_of(*arguments: str) -> Where:
    seen: list[Where] = []

    @click.command()
    @where_options
    def command(where: Where) -> None:
        seen.append(where)

    CliRunner().invoke(command, arguments, catch_exceptions=False, standalone_mode=False)
    return seen[0]


def test_this_machine_is_the_default() -> None:
    """A cluster is only ever asked for."""
    assert where_of() == Where()
    assert where_of().provider().backend.kind == "local"


def test_every_option_reaches_its_place() -> None:
    """All of them at once."""
    where = where_of(
        "-k", "--namespace", "rl", "--connect", "dial-in", "--delivery", "init", "--daemon-image", "a.b/d",
        "--advertise", "192.0.2.1", "--kubeconfig", "f", "--context", "c", "--registry", "a.b/x",
    )  # fmt: skip
    assert where.options() == ClusterOptions(
        namespace="rl", connect="dial-in", delivery="init", daemon_image="a.b/d", advertise="192.0.2.1"
    )
    assert (where.kubeconfig, where.context, where.registry) == ("f", "c", "a.b/x")
    assert where.provider().backend.kind == "kubernetes"


@pytest.mark.parametrize("option", ["--namespace", "--registry", "--kubeconfig", "--daemon-image"])
def test_an_option_of_clusters_alone_is_a_mistake(option: str) -> None:
    """Rather than a sandbox on this machine that nobody asked for."""
    with pytest.raises(BadRequest, match=option):
        where_of(option, "x")
