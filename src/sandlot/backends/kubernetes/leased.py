"""Leased sandboxes across processes: where the secrets of their links are kept, and how another process links to one."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.linking import UNREACHED_S
from sandlot.backends.kubernetes.links.bridge import bridge
from sandlot.backends.kubernetes.links.dial_in import dial_in
from sandlot.backends.kubernetes.links.keeping import Keepsake, state_dir
from sandlot.backends.kubernetes.links.registrar import Registrar, Secrets
from sandlot.backends.kubernetes.objects import Pod
from sandlot.backends.kubernetes.options import LISTEN_PORT
from sandlot.backends.kubernetes.pods import TASK
from sandlot.connection import Connection
from sandlot.errors import DeadlineExceeded, ProtocolViolation, SandboxGone, TransportLost, Unsupported

_log = logging.getLogger(__name__)


class LeasedLinks:
    """The leased sandboxes that this process uses, its own and those that it has taken over. No two processes use one."""

    def __init__(self, api: Api, namespace: str) -> None:
        self._api, self._namespace = api, namespace
        self._directory = state_dir(f"{api.credentials.server}/{namespace}")
        self._held: dict[str, Keepsake] = {}
        self._restored: dict[str, Registrar] = {}

    def keep(self, secrets: Secrets) -> None:
        """Write down what links to a sandbox that has just been made. A file of that name is of one that is no more.

        Raises:
            WriteFailed: the disk is full, for instance.
            Unsupported: the directory is not this user's alone.
        """
        with suppress(SandboxGone):
            stale, _ = Keepsake.take(self._directory, secrets.name)
            stale.remove()
        self._held[secrets.name] = Keepsake.create(self._directory, secrets)

    async def reopen(self, pod: Pod) -> Connection:
        """A link to a sandbox that another process of this user has made and left.

        Raises:
            Closed: that process still uses it.
            Unsupported: it was made by another user, or elsewhere.
            SandboxGone, TransportLost, ApiError: as for every link.
        """
        name = pod.metadata.name
        registrar = self._restored.get(name)
        if registrar is None:
            registrar = self._restored[name] = self._take(name)
        if pod.status.pod_ip is not None:
            try:
                async with asyncio.timeout(UNREACHED_S):
                    return await dial_in((pod.status.pod_ip, LISTEN_PORT), name, registrar)
            except (TimeoutError, TransportLost, DeadlineExceeded, ProtocolViolation) as error:
                _log.info("%s cannot be reached at its address (%s): its link goes through the API server", name, error)
        return await bridge(self._api, name, registrar, namespace=self._namespace, container=TASK)

    def remove(self, name: str) -> None:
        """The sandbox is gone. Idempotent."""
        self._restored.pop(name, None)
        keepsake = self._held.pop(name, None)
        if keepsake is not None:
            keepsake.remove()

    def close(self) -> None:
        """Leave the sandboxes to the next process. Idempotent."""
        self._restored.clear()
        held, self._held = self._held, {}
        for keepsake in held.values():
            keepsake.close()

    def _take(self, name: str) -> Registrar:
        try:
            keepsake, secrets = Keepsake.take(self._directory, name)
        except SandboxGone as error:
            message = f"{name} was made by another user, or on another machine: the secret of its link is there"
            raise Unsupported(message, hint="use it from where it was made; anybody may renew or delete it by name") from error
        self._held[name] = keepsake
        return Registrar.restored(secrets)
