"""Feeds and brakes: who gets which part, and who holds the socket."""

from __future__ import annotations

import asyncio

import pytest

from sandlot import errors
from sandlot.connection.sinks import Brake, Feed
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r

pytestmark = pytest.mark.looptime


def feed(brake: Brake | None = None) -> Feed:
    return Feed(asyncio.get_running_loop(), brake)


async def test_parts_of_a_new_beginning_are_not_taken_for_old_ones() -> None:
    """They wait until the reader has seen that the call began again."""
    sink = feed()
    sink.arrived("old")
    assert await sink.next_batch() == ["old"]
    sink.arrived("old too")
    sink.restarted()
    sink.arrived("new")
    assert await sink.next_batch() == []
    assert await sink.next() is None
    sink.again = False
    sink.ended(a.Ok(1))
    assert await sink.next_batch() == ["new"]
    assert await sink.next_batch() == []


async def test_parts_that_came_before_the_end_are_still_given() -> None:
    """The end comes after them."""
    sink = feed()
    sink.arrived("one")
    sink.ended(errors.TransportLost("lost"))
    assert await sink.next() == "one"
    assert await sink.next() is None
    with pytest.raises(errors.TransportLost):
        await sink.future


async def test_what_was_not_consumed_is_dropped_when_it_comes_again() -> None:
    """So that nothing is read twice."""
    sink = feed()
    sink.arrived(a.Out(1, 1, 0, b"x"))
    sink.rewound()
    sink.arrived(a.Out(1, 1, 0, b"x"))
    assert len(await sink.next_batch()) == 1


async def test_socket_is_held_while_any_feed_is_full() -> None:
    """And let go when the last of them is read, has ended, or is given up."""
    log: list[str] = []
    brake = Brake(lambda: log.append("hold"), lambda: log.append("go"))
    feeds = [feed(brake) for _ in range(3)]
    for sink in feeds:
        for _ in range(sink.MOST_PARTS + 1):
            sink.arrived(r.Entry(1, b"a", "dir"))
    assert (brake.on, log) == (True, ["hold"] * 3)
    await feeds[0].next_batch()
    feeds[1].ended(a.Ok(1))
    assert brake.on
    feeds[2].restarted()
    assert (brake.on, log[3:]) == (False, ["go"])
