"""All hosts of this user on this machine, whoever started them: for listing and for removing what nobody holds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from sandlot.backends.base import SandboxInfo
from sandlot.backends.local import messages
from sandlot.backends.local.dialling import dial
from sandlot.backends.local.runtime import HostDir, hosts
from sandlot.connection import Connection
from sandlot.errors import Infrastructure, SandboxGone
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r


@dataclass(frozen=True, slots=True)
class Found:
    """One host directory and what is in it."""

    host: str
    alive: bool
    sandboxes: tuple[SandboxInfo, ...] = ()
    problem: str = ""
    """Why a living host did not answer."""


async def survey(directory: Path) -> list[Found]:
    """Every host below the runtime directory with its sandboxes. A host that ends meanwhile is told as not alive."""
    return [await _look(host) for host in hosts(directory)]


async def _look(host: HostDir) -> Found:
    if not host.alive:
        return Found(host.id, alive=False)
    try:
        connection = await dial(os.fsencode(host.socket))
    except Infrastructure as error:
        return Found(host.id, alive=True, problem=error.message)
    try:
        answer = await connection.ask(r.ListSandboxes(id=connection.next_id()), a.SandboxesOk)
    except Infrastructure as error:
        return Found(host.id, alive=True, problem=error.message)
    finally:
        await connection.aclose()
    return Found(host.id, alive=True, sandboxes=tuple(messages.info(row) for row in answer.sandboxes))


async def enter(socket: bytes, name: str) -> Connection:
    """The link to a sandbox of the host that listens there.

    Raises:
        SandboxGone: it has none of that name any more.
    """
    connection = await dial(socket)
    try:
        await connection.become_sandbox(r.Enter(id=connection.next_id(), name=name), a.Ok)
    except BaseException:
        await connection.aclose()
        raise
    return connection


async def destroy(socket: bytes, name: str) -> bool:
    """Remove a sandbox of the host that listens there. False when it had none of that name."""
    connection = await dial(socket)
    try:
        return (await connection.ask(r.Destroy(id=connection.next_id(), name=name), a.DestroyOk)).existed
    finally:
        await connection.aclose()


async def renew(socket: bytes, name: str, lease_s: float) -> None:
    """Let a leased sandbox of the host that listens there live `lease_s` seconds from now.

    Raises:
        SandboxGone: it has none of that name any more.
    """
    connection = await dial(socket)
    try:
        await connection.ask(r.Renew(id=connection.next_id(), name=name, lease_ms=round(lease_s * 1000)), a.Ok)
    finally:
        await connection.aclose()


async def find_leased(directory: Path, name: str) -> bytes:
    """The socket of the host that has a leased sandbox of this name. Attached ones are their client's alone.

    Raises:
        SandboxGone: no living host has one.
    """
    for found in await survey(directory):
        for info in found.sandboxes:
            if info.name == name and info.owner == "leased":
                return os.fsencode(directory / found.host / "socket")
    raise SandboxGone(f"there is no leased sandbox named {name!r}", hint="`sandlot ps` lists those there are")
