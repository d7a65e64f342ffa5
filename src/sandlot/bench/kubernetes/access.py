"""The API server as a benchmark reaches it: one aiohttp session, no layer between, so that a floor is as low as it can be."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import aiohttp

from sandlot.backends.kubernetes.credentials import credentials

JSON_BODY: Final = {"Content-Type": "application/json"}


@asynccontextmanager
async def session(connections: int, kubeconfig: str | Path | None = None) -> AsyncIterator[aiohttp.ClientSession]:
    """A session with these or the usual credentials, with at most `connections`. Answers of 400 and more are errors of
    aiohttp."""
    found = await credentials(kubeconfig)()
    connector = aiohttp.TCPConnector(limit=connections, ssl=found.tls if found.tls is not None else False)
    headers = {"Accept": "application/json", **found.headers}
    timeout = aiohttp.ClientTimeout(total=None, connect=60)
    async with aiohttp.ClientSession(
        found.server, connector=connector, headers=headers, timeout=timeout, raise_for_status=True, proxy=found.proxy
    ) as opened:
        yield opened
