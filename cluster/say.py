"""What a command tells while it works."""

import sys
import time


class Say:
    """Writes lines to standard error, each with the seconds since the start."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def __call__(self, text: str) -> None:
        sys.stderr.write(f"cluster: [{self.seconds:6.1f} s] {text}\n")
        sys.stderr.flush()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start
