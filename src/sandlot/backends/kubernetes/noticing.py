"""What somebody who waits may want to know while nothing happens: what is waited for, and what is tried again."""

from __future__ import annotations

import logging
from collections.abc import Callable

Notice = Callable[[str], None]
"""Called on the event loop, perhaps for each of thousands of pods: it must be quick, and may drop what it is told too often."""

_log = logging.getLogger(__name__)


def log_notice(text: str) -> None:
    """To the log `sandlot`, for whom nobody shows notices."""
    _log.info("%s", text)
