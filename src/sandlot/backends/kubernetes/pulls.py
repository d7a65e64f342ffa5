"""How long images were being pulled, read from what the kubelet tells in events. Pure; the text is not trusted."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from sandlot.backends.kubernetes.objects import EventSeen

MOST_CHARS: Final = 2048
MOST_S: Final = 86_400.0
_PULLED: Final = re.compile(r"Successfully pulled image \"[^\"]*\" in (\S+)(?: \((\S+) including waiting\))?")
_DURATION: Final = re.compile(r"(?:(\d{1,4})h)?(?:(\d{1,4})m)?(?:(\d{1,6}(?:\.\d{1,9})?)(s|ms|µs))?")
"""As Go writes durations: 1m2.5s, 734.5ms."""
_UNIT_S: Final = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}


def pulled_s(events: Iterable[EventSeen]) -> float:
    """Seconds that this pod's pulls took, one after the other, with waiting for pulls of others on its node.

    The kubelet says (pkg/kubelet/images/image_manager.go): Successfully pulled image "x" in 1.2s (3.4s including waiting).
    """
    total_s = 0.0
    for event in events:
        if event.reason == "Pulled":
            match = _PULLED.match((event.message or "")[:MOST_CHARS])
            if match is not None:
                total_s += _seconds(match[2] or match[1].rstrip(".,"))
    return min(total_s, MOST_S)


def _seconds(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None:
        return 0.0
    hours, minutes, rest, unit = match.groups()
    return int(hours or 0) * 3600 + int(minutes or 0) * 60 + (float(rest) * _UNIT_S[unit] if rest else 0.0)
