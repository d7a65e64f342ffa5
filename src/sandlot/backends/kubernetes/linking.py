"""How this client comes by its links: which of the three ways, what the pods must be told for it, and how it is opened."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.links.addresses import advertised
from sandlot.backends.kubernetes.links.bridge import bridge, bridge_when_up
from sandlot.backends.kubernetes.links.dial_in import dial_in, dial_in_when_up
from sandlot.backends.kubernetes.links.listener import Listener
from sandlot.backends.kubernetes.links.registrar import Registrar
from sandlot.backends.kubernetes.nodes import pod_networks
from sandlot.backends.kubernetes.options import LISTEN_PORT, ClusterOptions
from sandlot.backends.kubernetes.watching import Tracked
from sandlot.connection import Connection

_log = logging.getLogger(__name__)

ALWAYS_S: Final = 10 * 365 * 86_400.0  # how long is the create's to say


class Links(Protocol):
    """One way to links, for all sandboxes of a client."""

    def register(self, name: str) -> Mapping[str, str]:
        """The variables by which the daemon of this sandbox will prove itself. Raises ValueError: it has some already."""

    async def connect(self, pod: Tracked) -> Connection:
        """The first link, whenever its daemon is up."""

    async def reconnect(self, pod: Tracked) -> Connection:
        """One try at another link to a daemon that has had one."""

    def forget(self, name: str) -> None:
        """No link of that name any more. Idempotent."""

    async def aclose(self) -> None:
        """Open links stay. Idempotent."""


OpenLinks = Callable[[Api, ClusterOptions], Awaitable[Links]]


async def open_links(api: Api, options: ClusterOptions) -> Links:
    """The way that the options name, or the best there is.

    Raises:
        Unsupported: for dial-out, no address of this machine leads here from a pod, or the port is taken.
    """
    way = options.connect
    if way == "auto":
        way = "dial-out" if api.credentials.in_cluster or options.advertise is not None else "auto"
    if way == "dial-out":
        return await DialOut.open(api, options)
    if way == "exec-bridge":
        return Bridge(api, options.namespace or api.credentials.namespace)
    return DialIn()


class DialOut:
    """The daemon calls this process."""

    def __init__(self, registrar: Registrar, listener: Listener, address: str) -> None:
        self._registrar, self._listener, self._address = registrar, listener, address

    @classmethod
    async def open(cls, api: Api, options: ClusterOptions) -> DialOut:
        """Listen, and find out under which address pods reach this machine."""
        registrar = Registrar()
        host = options.bind or None
        listener = await Listener.open(registrar, on_conflict=_report, port=options.port, host=host)
        try:
            peers = () if options.advertise is not None else await pod_networks(api)
            return cls(registrar, listener, advertised(options.advertise, peers, listener.port))
        except BaseException:
            await listener.aclose()
            raise

    def register(self, name: str) -> Mapping[str, str]:
        return {**self._registrar.register(name).environment(), "SANDLOT_DIAL": self._address}

    async def connect(self, pod: Tracked) -> Connection:
        return await self._listener.arrival(pod.name)

    async def reconnect(self, pod: Tracked) -> Connection:
        return await self._listener.arrival(pod.name)

    def forget(self, name: str) -> None:
        self._listener.forget(name)

    async def aclose(self) -> None:
        await self._listener.aclose()


class DialIn:
    """This process calls the pods' addresses."""

    def __init__(self) -> None:
        self._registrar = Registrar()

    def register(self, name: str) -> Mapping[str, str]:
        return {**self._registrar.register(name).environment(), "SANDLOT_LISTEN": str(LISTEN_PORT)}

    async def connect(self, pod: Tracked) -> Connection:
        address = (await _address(pod), LISTEN_PORT)
        return await dial_in_when_up(address, pod.name, self._registrar, within_s=ALWAYS_S)

    async def reconnect(self, pod: Tracked) -> Connection:
        return await dial_in((await _address(pod), LISTEN_PORT), pod.name, self._registrar)

    def forget(self, name: str) -> None:
        self._registrar.forget(name)

    async def aclose(self) -> None:
        """Nothing is held open."""


class Bridge:
    """This process reaches the daemon through the API server."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._registrar = Registrar()

    def register(self, name: str) -> Mapping[str, str]:
        return self._registrar.register(name).environment()

    async def connect(self, pod: Tracked) -> Connection:
        await pod.wait(lambda one: "running" in one.times_s)
        return await bridge_when_up(self._api, pod.name, self._registrar, namespace=self._namespace, within_s=ALWAYS_S)

    async def reconnect(self, pod: Tracked) -> Connection:
        return await bridge(self._api, pod.name, self._registrar, namespace=self._namespace)

    def forget(self, name: str) -> None:
        self._registrar.forget(name)

    async def aclose(self) -> None:
        """Nothing is held open."""


async def _address(pod: Tracked) -> str:
    await pod.wait(lambda one: one.pod is not None and one.pod.status.pod_ip is not None)
    assert pod.pod is not None
    assert pod.pod.status.pod_ip is not None
    return pod.pod.status.pod_ip


def _report(name: str, what: str) -> None:
    """Anybody who knows a name can make such a claim, so it ends nothing; but somebody should look."""
    _log.warning("a link was refused: %s (sandbox %s); see who can read pods in its namespace", what, name)
