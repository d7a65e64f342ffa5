"""Running a command's coroutine: signals end it in order, so that what it made is removed before the process ends."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import TypeVar

from sandlot.collecting import collect_seldom

T = TypeVar("T")


def run(main: Coroutine[object, object, T]) -> T:
    """Run to the end. Ctrl-C and SIGTERM and SIGHUP cancel it once and let it clean up; a second Ctrl-C does not wait.

    Raises:
        KeyboardInterrupt: after Ctrl-C.
        SystemExit: after another signal, with 128 + its number; SIGPIPE's when the reader of our output went away.
    """
    collect_seldom()
    try:
        return asyncio.run(_guarded(main))
    except BrokenPipeError:
        raise SystemExit(128 + signal.SIGPIPE) from None


async def _guarded(main: Coroutine[object, object, T]) -> T:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    caught: list[int] = []

    def stop(number: int) -> None:
        if not caught:
            task.cancel()
        caught.append(number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    for number in numbers:
        loop.add_signal_handler(number, stop, number)
    try:
        return await main
    except asyncio.CancelledError:
        if caught:
            raise SystemExit(128 + caught[0]) from None
        raise
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
