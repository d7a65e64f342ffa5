"""Progress of publishing images, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sandlot.cli.failures import one_line
from sandlot.cli.output import size

if TYPE_CHECKING:
    from sandlot.backends.kubernetes.publishing import Step

_EVERY_S: Final = 0.2


def show_publishing() -> Callable[[Step], None]:
    """On a terminal one line that changes, elsewhere one line for each part that is done."""
    return _Line() if sys.stderr.isatty() else _log


def _log(step: Step) -> None:
    if step.done:
        print(f"sandlot: {one_line(step.image)}: {one_line(step.part)} sent, {size(step.bytes)}", file=sys.stderr)


class _Line:
    def __init__(self) -> None:
        self._next_s = 0.0

    def __call__(self, step: Step) -> None:
        now = time.monotonic()
        if step.done:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        elif now >= self._next_s:
            self._next_s = now + _EVERY_S
            count = f", {size(step.bytes)} of {size(step.size)}" if step.size else ""
            text = f"{step.what} {one_line(step.image)}: {one_line(step.part)}{count}"
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
