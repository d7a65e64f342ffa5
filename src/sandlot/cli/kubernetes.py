"""The options that say where sandboxes come to be: on this machine, unless a cluster is asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from sandlot.cli.notices import show_notices
from sandlot.cli.unpacking import show_unpacking
from sandlot.errors import BadRequest
from sandlot.events import EventLog
from sandlot.opening import kubernetes, local
from sandlot.policy import Settings, cluster_settings
from sandlot.provider import Provider

if TYPE_CHECKING:
    from sandlot.backends.kubernetes import ClusterOptions
    from sandlot.backends.kubernetes.api import Api

Connect = Literal["auto", "dial-out", "dial-in", "exec-bridge"]
Delivery = Literal["auto", "image", "init", "hostpath"]

RETRY_WITHIN_S: Final = 30.0  # `exec` and `shell`: what fails later has been tried for long enough by node or scheduler


@dataclass(frozen=True, slots=True)
class Where:
    """This machine, or a cluster and how to use it."""

    kubernetes: bool = False
    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    connect: Connect = "auto"
    advertise: str | None = None
    delivery: Delivery = "auto"
    registry: str | None = None
    daemon_image: str | None = None

    def provider(self, settings: Settings | None = None, *, events: EventLog | None = None) -> Provider:
        """Of the kind that was asked for, with progress on standard error."""
        if not self.kubernetes:
            return local(settings, events=events, progress=show_unpacking())
        from sandlot.cli.publishing import show_publishing

        return kubernetes(
            settings,
            options=self.options(),
            kubeconfig=self.kubeconfig,
            context=self.context,
            registry=self.registry,
            events=events,
            progress=show_publishing(),
            notice=show_notices(),
        )

    def of_one(self) -> Settings:
        """Where somebody waits for one sandbox: a create that took long and failed is theirs to repeat."""
        return replace(cluster_settings() if self.kubernetes else Settings(), retry_within_s=RETRY_WITHIN_S)

    def options(self) -> ClusterOptions:
        """How the cluster shall be used."""
        from sandlot.backends.kubernetes import ClusterOptions

        return ClusterOptions(
            namespace=self.namespace,
            connect=self.connect,
            advertise=self.advertise,
            delivery=self.delivery,
            daemon_image=self.daemon_image,
        )

    @asynccontextmanager
    async def api(self) -> AsyncIterator[tuple[Api, str]]:
        """The API server, which has told its time, and the namespace of the sandboxes: for looking without a provider."""
        from sandlot.backends.kubernetes.api import Api
        from sandlot.backends.kubernetes.credentials import credentials

        async with await Api.open(credentials(self.kubeconfig, self.context)) as api:
            await api.request("GET", "/version")
            yield api, self.namespace or api.credentials.namespace


_FLAG = click.option("--kubernetes", "-k", is_flag=True, help="In a cluster, not on this machine.")
_REACH = (
    click.option("--kubeconfig", metavar="FILE", help="[default: KUBECONFIG, else ~/.kube/config, else this pod's account]"),
    click.option("--context", metavar="NAME", help="Of the kubeconfig.  [default: its current one]"),
    click.option("--namespace", metavar="NAME", help="Of the sandboxes.  [default: the context's]"),
)
_USE = (
    click.option(
        "--connect",
        type=click.Choice(["auto", "dial-out", "dial-in", "exec-bridge"]),
        help="Who opens links.  [default: auto]",
    ),
    click.option("--advertise", metavar="ADDRESS", help="Of this machine, as pods reach it, for dial-out."),
    click.option(
        "--delivery",
        type=click.Choice(["auto", "image", "init", "hostpath"]),
        help="How the daemon comes into pods.  [default: auto]",
    ),
    click.option("--registry", metavar="HOST[:PORT]/PATH", help="Where images are published.  [default: the cluster's own]"),
    click.option("--daemon-image", metavar="IMAGE", help="With the daemon in it.  [default: published to the registry]"),
)
_NAMES = ("kubernetes", "kubeconfig", "context", "namespace", "connect", "advertise", "delivery", "registry", "daemon_image")


def where_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add all options; the command gets them as one argument, `where`."""
    return _with(command, (_FLAG, *_REACH, *_USE))


def look_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add those that say which cluster; the command gets them as one argument, `where`."""
    return _with(command, (_FLAG, *_REACH))


def _with(command: Callable[..., Any], options: tuple[Callable[..., Any], ...]) -> Callable[..., Any]:
    @wraps(command)
    def with_where(**params: Any) -> Any:
        given = {name: value for name in _NAMES if (value := params.pop(name, None)) is not None}
        if not given.get("kubernetes") and (others := sorted(given.keys() - {"kubernetes"})):
            raise BadRequest(f"--{others[0].replace('_', '-')} belongs to --kubernetes")
        return command(where=Where(**given), **params)

    for option in reversed(options):
        with_where = option(with_where)
    return with_where
