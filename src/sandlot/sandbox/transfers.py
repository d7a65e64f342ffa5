"""Moves trees and large files over a connection under flow control. Files are read and written off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any, Final, Protocol, TypeVar, cast

from sandlot.connection import Connection
from sandlot.connection.sinks import Feed, Source
from sandlot.limits import MAX_CHUNK_BYTES, REQUEST_PATIENCE_S
from sandlot.protocol import requests as r
from sandlot.sandbox.trees import Item, Piece

_BATCH_BYTES: Final = 4 * MAX_CHUNK_BYTES
_BATCH_ITEMS: Final = 256
Shape = TypeVar("Shape", bound=r.Message)


class Target(Protocol):
    """Takes what comes down. `restart` when the link broke and everything comes again; `close` ends it, finished or not."""

    def entry(self, entry: r.Entry) -> None: ...
    def data(self, at: int | None, data: bytes) -> None: ...
    def restart(self) -> None: ...
    def finish(self) -> None: ...
    def close(self) -> None: ...


# --- up ------------------------------------------------------------------------------------------------------------------
async def send(connection: Connection, request: r.Request, items: Callable[[], Iterator[Item]], shape: type[Shape]) -> Shape:
    """Send all items and the end; the daemon's closing answer. After a broken link it starts over."""
    sink = connection.begin(request, connection.source(), patience_s=REQUEST_PATIENCE_S)
    try:
        while not sink.future.done():
            sink.again = False
            iterator = items()
            if await _send_all(connection, sink, iterator):
                while not sink.future.done() and not sink.again:
                    await sink.changed()
        return cast(Shape, await sink.future)
    finally:
        if not sink.future.done():
            connection.abandon(sink)


async def _send_all(connection: Connection, sink: Source, iterator: Iterator[Item]) -> bool:
    """False: the call ended or began again before everything was sent."""
    while batch := await asyncio.to_thread(_take, iterator):
        for item in batch:
            if await connection.wait_room(sink) == 0:
                return False
            if isinstance(item, Piece):
                if not await _send_piece(connection, sink, item):
                    return False
            else:
                connection.send_entry(sink, item)
    if await connection.wait_room(sink) == 0:
        return False
    connection.send_end(sink)
    return True


async def _send_piece(connection: Connection, sink: Source, piece: Piece) -> bool:
    view, position = memoryview(piece.data), 0
    while position < len(view):
        room = await connection.wait_room(sink)
        if room == 0:
            return False
        part = view[position : position + room]
        connection.send_data(sink, bytes(part), at=None if piece.at is None else piece.at + position)
        position += len(part)
    return True


def _take(iterator: Iterator[Item]) -> list[Item]:
    """Some items: at most about `_BATCH_BYTES` of data."""
    batch: list[Item] = []
    size = 0
    for item in iterator:
        batch.append(item)
        size += len(item.data) if isinstance(item, Piece) else 0
        if size >= _BATCH_BYTES or len(batch) >= _BATCH_ITEMS:
            break
    return batch


# --- down ----------------------------------------------------------------------------------------------------------------
async def receive(connection: Connection, request: r.Request, target: Target, shape: type[Shape]) -> Shape:
    """Bring everything into `target`. A broken link starts it over."""
    sink = connection.begin(request, connection.feed(), patience_s=REQUEST_PATIENCE_S)
    try:
        await _receive_all(connection, sink, target)
        answer = await sink.future
        await _in_thread(target.finish)
        return cast(Shape, answer)
    finally:
        if not sink.future.done():
            connection.abandon(sink)
        target.close()


async def _receive_all(connection: Connection, sink: Feed, target: Target) -> None:
    while True:
        batch = await sink.next_batch()
        if sink.again:
            sink.again = False
            target.restart()
        elif batch:
            await _in_thread(_put, target, batch)
            for part in reversed(batch):
                if isinstance(part, r.Data) and not sink.future.done() and not sink.again:
                    connection.consumed(sink, part)
                    break
        else:
            return


def _put(target: Target, batch: list[Any]) -> None:
    for part in batch:
        if isinstance(part, r.Entry):
            target.entry(part)
        else:
            target.data(part.at, part.d)


async def _in_thread(function: Callable[..., None], *args: object) -> None:
    """Run it to its end even when this task is cancelled: the target is closed right afterwards."""
    work = asyncio.ensure_future(asyncio.to_thread(function, *args))
    try:
        await asyncio.shield(work)
    except asyncio.CancelledError:
        await asyncio.wait([work])
        raise
