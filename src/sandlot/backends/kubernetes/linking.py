"""How this client comes by its links: which of the three ways, what the pods must be told for it, and how it is opened."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Protocol

from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.links.addresses import advertised
from sandlot.backends.kubernetes.links.bridge import bridge, bridge_when_up
from sandlot.backends.kubernetes.links.dial_in import dial_in, dial_in_when_up
from sandlot.backends.kubernetes.links.listener import Listener
from sandlot.backends.kubernetes.links.registrar import Registrar, Secrets
from sandlot.backends.kubernetes.nodes import pod_networks
from sandlot.backends.kubernetes.options import LISTEN_PORT, ClusterOptions
from sandlot.backends.kubernetes.pods import TASK
from sandlot.backends.kubernetes.watching import Tracked
from sandlot.connection import Connection
from sandlot.errors import Closed

_log = logging.getLogger(__name__)

UNREACHED_S: Final = 3.0  # of a pod whose daemon runs: a pod network that leads there answers within milliseconds
ALWAYS_S: Final = 10 * 365 * 86_400.0  # how long is the create's to say


class Links(Protocol):
    """One way to links, for all sandboxes of a client."""

    def register(self, name: str) -> Mapping[str, str]:
        """The variables by which the daemon of this sandbox will prove itself. Raises ValueError: it has some already."""

    async def connect(self, pod: Tracked) -> Connection:
        """The first link, whenever its daemon is up."""

    async def reconnect(self, pod: Tracked) -> Connection:
        """One try at another link to a daemon that has had one."""

    def secrets_of(self, name: str) -> Secrets:
        """What another process needs to link to the sandbox."""

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
    namespace = options.namespace or api.credentials.namespace
    if way == "exec-bridge":
        return Bridged(api, namespace)
    return DialIn(api, namespace, falls_back=way == "auto")


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

    def secrets_of(self, name: str) -> Secrets:
        return self._registrar.secrets_of(name)

    def forget(self, name: str) -> None:
        self._listener.forget(name)

    async def aclose(self) -> None:
        await self._listener.aclose()


class Bridged:
    """Through the API server: an exec stream into the pod, where `sandlotd connect` passes bytes on."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace, self._registrar = api, namespace, Registrar()

    def register(self, name: str) -> Mapping[str, str]:
        return self._registrar.register(name).environment()

    async def connect(self, pod: Tracked) -> Connection:
        await pod.wait(_running)
        return await bridge_when_up(
            self._api, pod.name, self._registrar, namespace=self._namespace, container=TASK, within_s=ALWAYS_S
        )

    async def reconnect(self, pod: Tracked) -> Connection:
        return await bridge(self._api, pod.name, self._registrar, namespace=self._namespace, container=TASK)

    def secrets_of(self, name: str) -> Secrets:
        return self._registrar.secrets_of(name)

    def forget(self, name: str) -> None:
        self._registrar.forget(name)

    async def aclose(self) -> None:
        """Nothing is held open."""


class DialIn(Bridged):
    """This process calls the pods' addresses; where it finds that it cannot, and may, it goes through the API server."""

    def __init__(self, api: Api, namespace: str, *, falls_back: bool) -> None:
        super().__init__(api, namespace)
        self._falls_back = falls_back
        self._reached = False
        self._bridged: set[str] = set()

    def register(self, name: str) -> Mapping[str, str]:
        return {**super().register(name), "SANDLOT_LISTEN": str(LISTEN_PORT)}

    async def connect(self, pod: Tracked) -> Connection:
        if self._reached or not self._falls_back:
            return await self._dial(pod)
        dialling = asyncio.create_task(self._dial(pod), name=f"dial {pod.name}")
        try:
            if not await _answers(pod, dialling):
                drop(dialling)
                _log.info("%s cannot be reached at its address: its link goes through the API server", pod.name)
                self._bridged.add(pod.name)
                return await super().connect(pod)
            connection = await dialling
        except BaseException:
            drop(dialling)
            raise
        self._reached = True
        return connection

    async def reconnect(self, pod: Tracked) -> Connection:
        if pod.name in self._bridged:
            return await super().reconnect(pod)
        return await dial_in((await _address(pod), LISTEN_PORT), pod.name, self._registrar)

    def forget(self, name: str) -> None:
        self._bridged.discard(name)
        super().forget(name)

    async def _dial(self, pod: Tracked) -> Connection:
        address = (await _address(pod), LISTEN_PORT)
        return await dial_in_when_up(address, pod.name, self._registrar, within_s=ALWAYS_S)


async def _answers(pod: Tracked, dialling: asyncio.Task[Connection]) -> bool:
    """Whether the daemon answers at its pod's address soon after its container runs."""
    running = asyncio.create_task(pod.wait(_running))
    try:
        await asyncio.wait([dialling, running], return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([dialling], timeout=UNREACHED_S)
    finally:
        running.cancel()
    return dialling.done()


def drop(linking: asyncio.Task[Connection]) -> None:
    """Nobody takes this link: give it up, or close it when it is there already."""
    if not linking.cancel() and not linking.cancelled() and linking.exception() is None:
        linking.result().fail(Closed("nobody waited for this link any more"))


async def _address(pod: Tracked) -> str:
    await pod.wait(lambda one: one.pod is not None and one.pod.status.pod_ip is not None)
    assert pod.pod is not None
    assert pod.pod.status.pod_ip is not None
    return pod.pod.status.pod_ip


def _running(pod: Tracked) -> bool:
    return "running" in pod.times_s


def _report(name: str, what: str) -> None:
    """Anybody who knows a name can make such a claim, so it ends nothing; but somebody should look."""
    _log.warning("a link was refused: %s (sandbox %s); see who can read pods in its namespace", what, name)
