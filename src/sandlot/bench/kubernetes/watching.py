"""A watch as cheap as it can be: lines out of the stream, and nothing decoded that is not asked for."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import aiohttp
import msgspec

from sandlot.errors import TransportLost


class _Metadata(msgspec.Struct):
    version: str = msgspec.field(name="resourceVersion", default="")


class _Stamped(msgspec.Struct):
    metadata: _Metadata


class _Event(msgspec.Struct):
    type: str
    object: _Stamped


async def version(session: aiohttp.ClientSession, path: str) -> str:
    """Where a watch of everything to come begins."""
    async with session.get(path, params={"limit": "1"}) as answer:
        return msgspec.json.decode(await answer.read(), type=_Stamped).metadata.version


async def batches(
    session: aiohttp.ClientSession, path: str, version: str, selectors: Mapping[str, str]
) -> AsyncIterator[list[bytes]]:
    """The events since `version`, for ever, as they come: all whole lines that one read from the socket brought.

    A busy API server ends the watches that it has no time to serve; each goes on where it was.

    Raises:
        TransportLost: what happened meanwhile is forgotten there.
    """
    while True:
        query = {"watch": "true", "resourceVersion": version, "timeoutSeconds": "3600", **selectors}
        rest = b""
        async with session.get(path, params=query) as answer:
            async for chunk in answer.content.iter_any():
                *lines, rest = (rest + chunk).split(b"\n")
                if lines:
                    version = _last(path, lines[-1])
                    yield lines


def _last(path: str, line: bytes) -> str:
    event = msgspec.json.decode(line, type=_Event)
    if event.type == "ERROR":
        raise TransportLost(f"the benchmark's watch of {path} was refused: {line[:200].decode(errors='replace')}")
    return event.object.metadata.version
