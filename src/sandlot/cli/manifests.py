"""`sandlot manifests`: what an administrator applies once, so that others can use Sandlot with no more rights than it needs."""

from __future__ import annotations

from typing import Literal

import click


@click.command("manifests")
@click.option("--namespace", default="sandlot", show_default=True, help="For sandboxes alone.")
@click.option(
    "--security", type=click.Choice(["baseline", "restricted", "privileged"]), default="baseline", show_default=True,
    help="The pod security level of the namespace.",
)  # fmt: skip
@click.option("--exec-bridge", is_flag=True, help="Let clients reach sandboxes through the API server.")
@click.option("--looking", is_flag=True, help="Let clients see more of the cluster with `sandlot doctor`.")
@click.option("--policies", is_flag=True, help="Isolate sandboxes from each other and from all but their clients.")
@click.option("--client", "clients", multiple=True, metavar="ADDRESS[/BITS]", help="Outside of the cluster, for --policies.")
@click.option("--port", type=click.IntRange(1, 65535), help="The one port of clients that sandboxes may call.")
@click.option("--reaper", metavar="IMAGE", help="Add a reaper in the cluster, from an image with Sandlot in it.")
def command(
    namespace: str,
    security: Literal["baseline", "restricted", "privileged"],
    exec_bridge: bool,
    looking: bool,
    policies: bool,
    clients: tuple[str, ...],
    port: int | None,
    reaper: str | None,
) -> int:
    """Print the objects that make a namespace fit for sandboxes, for `kubectl apply -f -`.

    An image for --reaper is any Python image with Sandlot in it: FROM python:3.12-slim, RUN pip install 'sandlot[kubernetes]'.
    """
    from sandlot.backends.kubernetes.manifests import ManifestOptions, as_yaml, manifests

    options = ManifestOptions(
        namespace=namespace,
        security=security,
        exec_bridge=exec_bridge,
        looking=looking,
        policies=policies,
        reaper_image=reaper,
        clients=clients,
        port=port,
    )
    click.echo(as_yaml(manifests(options)), nl=False)
    return 0
