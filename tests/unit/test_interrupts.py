"""One Ctrl-C too many, and a cancellation that comes too early."""

from __future__ import annotations

import asyncio
import signal

import pytest

from sandlot.interrupts import Begun, patience


def test_one_interrupt_is_taken_and_the_next_goes_through() -> None:
    """The second Ctrl-C of a hurried person does nothing; the third does what it always did."""
    with patience():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_overlapping_blocks_restore_the_handler_in_any_order() -> None:
    """Two providers that close at the same time leave the handler that was there before both."""
    before = signal.getsignal(signal.SIGINT)
    one, two = patience(), patience()
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    two.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGINT) is before


async def test_what_must_begin_begins_though_it_is_cancelled_before() -> None:
    """Up to its first wait: there it is cancelled, and cleans up."""
    steps: list[str] = []

    async def work() -> None:
        steps.append("begun")
        try:
            await asyncio.sleep(3600)
        finally:
            steps.append("cleaned up")

    task = asyncio.create_task(Begun(work()))
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()
    assert steps == ["begun", "cleaned up"]


async def test_what_never_waits_ends_before_it_can_be_cancelled() -> None:
    """And has a result."""

    async def work() -> str:
        return "done"

    task = asyncio.create_task(Begun(work()))
    task.cancel()
    assert await task == "done"


async def test_what_holds_out_goes_on() -> None:
    """As any task does that takes its cancellation back; and nothing changes for one that is not cancelled."""

    async def work() -> int:
        told = 0
        for _ in range(3):
            try:
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                told += 1
        return told

    tasks = [asyncio.create_task(Begun(work())) for _ in range(2)]
    tasks[0].cancel()
    assert [await task for task in tasks] == [1, 0]
