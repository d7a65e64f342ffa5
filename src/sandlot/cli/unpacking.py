"""Progress of unpacking an image, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Final

from sandlot.backends.local.images.store import Unpacked
from sandlot.cli.failures import one_line
from sandlot.cli.output import size

_EVERY_S: Final = 0.2


def show_unpacking() -> Callable[[Unpacked], None]:
    """On a terminal one line that changes, elsewhere one line a layer."""
    return _Line() if sys.stderr.isatty() else _log


def _log(step: Unpacked) -> None:
    if step.done:
        where = f"layer {step.layer} of {step.layers}"
        print(f"sandlot: {one_line(step.image)}: {where} unpacked, {size(step.bytes)}", file=sys.stderr)


class _Line:
    def __init__(self) -> None:
        self._next_s = 0.0

    def __call__(self, step: Unpacked) -> None:
        now = time.monotonic()
        if step.done and step.layer == step.layers:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
        elif now >= self._next_s:
            self._next_s = now + _EVERY_S
            text = f"unpacking {one_line(step.image)}: layer {step.layer} of {step.layers}, {size(step.bytes)}"
            print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
