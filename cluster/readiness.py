"""Whether a component serves, and waiting for it while watching that nothing dies."""

import http.client
import socket
import ssl
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

_POLL_S = 0.05
_HELLO = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))  # RFC 9113, 3.4: empty SETTINGS after it
_SETTINGS = 4


def answers(where: str) -> bool:
    """Whether what `Component.answers` names does answer."""
    scheme, _, rest = where.partition(":")
    if scheme == "file":
        return Path(rest).exists()
    if scheme == "grpc":
        return _greets(rest)
    return _http_ok(where)


def _greets(path: str) -> bool:
    """Whether a server of HTTP/2 answers there. That a socket takes connections says only that somebody means to."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
            probe.sendall(_HELLO)
            head = probe.recv(9)
        except OSError:
            return False
    return len(head) > 3 and head[3] == _SETTINGS


def _http_ok(url: str) -> bool:
    # Only to loopback ports of our own; some components sign for themselves.
    context = ssl._create_unverified_context() if url.startswith("https:") else None
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), *([urllib.request.HTTPSHandler(context=context)] if context else [])
    )
    try:
        with opener.open(url, timeout=5.0) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def wait_until(condition: Callable[[], bool], *, timeout_s: float, check: Callable[[], None]) -> bool:
    """Poll until it holds, or `timeout_s`; `check` is called between and raises to give up sooner."""
    end = time.monotonic() + timeout_s
    while not condition():
        check()
        if time.monotonic() >= end:
            return False
        time.sleep(_POLL_S)
    return True
