"""Dial-in: the provider calls the daemon at its pod's address. The daemon speaks first all the same."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Final

from sandlot.backends.kubernetes.links.persisting import until_up
from sandlot.backends.kubernetes.links.reception import SocketStream, called, tune
from sandlot.backends.kubernetes.links.registrar import Registrar
from sandlot.connection import Connection
from sandlot.errors import TransportLost

CONNECT_S: Final = 0.5
"""A pod network answers within milliseconds, or drops packets until the pod is known everywhere: then it is asked again."""

FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.5

Address = tuple[str, int]
"""An IP address, never a name, and a port."""


async def dial_in(address: Address, name: str, registrar: Registrar) -> Connection:
    """A link to the daemon of `name` that listens there: one attempt. Fit for `Connection.keep_open`, which tries again.

    Raises:
        TransportLost: nobody listens there (yet), or the link broke. Retriable.
        ProtocolViolation, DeadlineExceeded: somebody else listens there, or says nothing. Retriable.
        SandboxGone: the sandbox was forgotten, or another process claims to be its daemon.
    """
    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET, socket.SOCK_STREAM)
    try:
        tune(sock)
        sock.setblocking(False)
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(sock, address)
        stream = await SocketStream.own(sock)
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            why = os.strerror(error.errno) if error.errno else "no answer"
            raise TransportLost(f"{name} at {_shown(address)} could not be reached: {why}") from error
        raise
    return await called(stream, name, registrar)


async def dial_in_when_up(address: Address, name: str, registrar: Registrar, *, within_s: float) -> Connection:
    """As `dial_in`, again and again until the daemon is up, for at most `within_s` seconds.

    Raises:
        TransportLost: it did not come up; the last reason is in the text. Retriable.
        SandboxGone: as `dial_in`.
    """
    return await until_up(
        lambda: dial_in(address, name, registrar),
        within_s=within_s,
        first_pause_s=FIRST_PAUSE_S,
        longest_pause_s=LONGEST_PAUSE_S,
    )


def _shown(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
