"""Dial-in: the provider calls the daemon at its pod's address. The daemon speaks first all the same."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from typing import Final

from sandlot.backends.kubernetes.links.reception import SocketStream, receive, tune
from sandlot.backends.kubernetes.links.registrar import Conflict, Refused, Registrar
from sandlot.connection import Connection
from sandlot.errors import Infrastructure, SandboxGone, TransportLost

CONNECT_S: Final = 0.5
"""A pod network answers within milliseconds, or drops packets until the pod is known everywhere: then it is asked again."""

FIRST_PAUSE_S: Final = 0.02
LONGEST_PAUSE_S: Final = 0.5
PAUSE_SHARE: Final = 0.05
"""Of the time waited so far: an image may be pulled for minutes, and nobody waits a twentieth longer than must be."""

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
        stream = SocketStream(sock)
        async with asyncio.timeout(CONNECT_S):
            await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException as error:
        sock.close()
        if isinstance(error, OSError):
            why = os.strerror(error.errno) if error.errno else "no answer"
            raise TransportLost(f"{name} at {_shown(address)} could not be reached: {why}") from error
        raise
    try:
        return await receive(stream, registrar, expected=name)
    except Conflict as refusal:
        raise SandboxGone(str(refusal), hint="somebody has read its enrolment secret; see who may read pods") from refusal
    except Refused as refusal:
        if name not in registrar:
            raise SandboxGone(f"{name} was deleted by this client") from refusal
        raise TransportLost(str(refusal)) from refusal


async def dial_in_when_up(address: Address, name: str, registrar: Registrar, *, within_s: float) -> Connection:
    """As `dial_in`, again and again until the daemon is up, for at most `within_s` seconds.

    Raises:
        TransportLost: it did not come up; the last reason is in the text. Retriable.
        SandboxGone: as `dial_in`.
    """
    loop = asyncio.get_running_loop()
    began = loop.time()
    while True:
        try:
            return await dial_in(address, name, registrar)
        except SandboxGone:
            raise
        except Infrastructure as error:
            waited_s = loop.time() - began
            if waited_s >= within_s:
                raise TransportLost(f"no link within {within_s:g} s: {error}") from error
        pause_s = min(max(FIRST_PAUSE_S, PAUSE_SHARE * waited_s), LONGEST_PAUSE_S)
        await asyncio.sleep(min(pause_s * random.uniform(1, 2), within_s - waited_s))


def _shown(address: Address) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
