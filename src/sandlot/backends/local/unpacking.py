"""A sandbox that writes to one directory of this machine: where images are unpacked, confined like everything else."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from sandlot.backends.local.hostlink import HostLink
from sandlot.backends.local.images.store import OpenTree
from sandlot.connection import Connection
from sandlot.limits import REQUEST_PATIENCE_S
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.sandbox.transfers import send
from sandlot.sandbox.trees import Item

_PIDS: Final = 64  # the daemon and nothing else runs there
_UPPER_BYTES: Final = 16_777_216  # for the daemon's own mounts; the tree itself goes to disk


def bare_sandboxes(link: HostLink) -> OpenTree:
    """Opens such sandboxes on the host of `link`; each is destroyed when its block is left."""

    @asynccontextmanager
    async def open_tree(path: Path) -> AsyncIterator[_BareTree]:
        connection = await link.dial()
        name = f"unpack-{secrets.token_hex(6)}"
        try:
            request = r.Create(
                id=connection.next_id(),
                name=name,
                image=r.Image(kind="bare", path=os.fsencode(path)),
                upper=r.Upper(kind="tmpfs", size_bytes=_UPPER_BYTES),
                workdir=b"/",
                limits=r.Limits(pids=_PIDS),
                limits_mode="best-effort",
            )
            await connection.become_sandbox(request, a.CreateOk)
            yield _BareTree(connection)
        finally:
            await asyncio.shield(_close(link, connection, name))

    return open_tree


async def _close(link: HostLink, connection: Connection, name: str) -> None:
    await connection.aclose()
    if link.death is not None:
        return  # it took the sandbox with it
    control = await link.dial()
    try:
        await control.ask(r.Destroy(id=control.next_id(), name=name), a.DestroyOk)
    finally:
        await control.aclose()


class _BareTree:
    """The directory, as `images.store` wants it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def clear(self) -> None:
        """Remove everything below the root."""
        connection = self._connection
        request = r.ListFiles(id=connection.next_id(), path=b"/")
        pages = connection.begin(request, connection.pages(), patience_s=REQUEST_PATIENCE_S)
        await connection.finish(pages)
        for entry in pages.entries:
            removal = r.Remove(id=connection.next_id(), path=b"/" + entry.path, recursive=True, missing_ok=True)
            await connection.ask(removal, a.Ok, patience_s=None)

    async def fill(self, items: Callable[[], Iterator[Item]]) -> None:
        """Write entries and their data."""
        request = r.Upload(id=self._connection.next_id(), path=b"/")
        await send(self._connection, request, items, a.TransferOk)
