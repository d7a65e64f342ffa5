"""One Ctrl-C too many while sandboxes are being deleted."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

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
