"""What interrupts comes too early or once too often: a task cancelled before it has begun, one Ctrl-C too many."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")
Handler = Callable[[int, FrameType | None], Any] | int | signal.Handlers | None


class _Patience:
    """Takes one SIGINT in place of the handler that was there; whatever comes after it goes to that one."""

    def __init__(self, former: Handler) -> None:
        self.former = former
        self.taken = 0
        self.over = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.taken += 1
        if self.taken > 1 and callable(self.former):
            self.former(number, frame)


@contextmanager
def patience() -> Iterator[None]:
    """Within this block the next SIGINT does nothing, and those after it do what they did before.

    The second Ctrl-C of a hurried person comes while the first one's clean-up runs. `asyncio.run` answers it by raising
    inside the event loop, wherever that is just then, which breaks the very calls that delete. Blocks may overlap. Outside
    of the main thread, where Python hears no signals, this does nothing.
    """
    former = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(former):
        yield
        return
    mine = _Patience(former)
    signal.signal(signal.SIGINT, mine)
    try:
        yield
    finally:
        mine.over = True
        handler: Handler = signal.getsignal(signal.SIGINT)
        while isinstance(handler, _Patience) and handler.over:
            handler = handler.former
        signal.signal(signal.SIGINT, handler)


class Begun(Coroutine[Any, Any, T]):
    """What a task runs that must begin, to be given to `create_task`.

    A task that is cancelled before its first step never takes it: nothing of what it was to clean up is cleaned up, and no
    `finally` runs. This runs up to its first wait in any case, and is cancelled there.
    """

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work
        self._begun = False

    def send(self, value: Any, /) -> Any:
        self._begun = True
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        if not self._begun:
            self.send(None)
        return self._work.throw(*error)

    def close(self) -> None:
        self._work.close()

    def __await__(self) -> Generator[Any, Any, T]:
        return self._work.__await__()
