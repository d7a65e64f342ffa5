"""What to say of a call when it begins, and what to say again after a lost link. Pure: a call in, messages and events out."""

from __future__ import annotations

from collections import deque
from typing import Final

from msgspec.structs import replace

from sandlot.protocol import requests as r
from sandlot.protocol.calls import Call
from sandlot.protocol.events import Event, Restarted, Rewound, Writable

Said = tuple[list[r.Message], list[Event]]

_TOLD_KEYS: Final = 64
"""Results named as delivered that are named again after a lost link, since the first time may have been lost with it."""


def begin(call: Call) -> Said:
    """The request for the first time, and standard input that was given or kept from a former call before that."""
    call.sent = True
    return [call.request, *_kept_input(call)], _writable(call)


def resume(call: Call) -> Said:
    """On a new link: begin a call that was never sent, continue a command, or start over what is harmless twice."""
    if not call.sent:
        return begin(call)
    if call.recovery == "attach":
        return _reattach(call)
    call.reset_streams()
    return [call.request], [Restarted(call)]


def _reattach(call: Call) -> Said:
    """Continue a command. One of which nothing was heard may not have arrived: its own message never runs it twice."""
    void = [stream.rewind() for stream in call.inbound.values()]
    offsets = [stream.consumed for stream in call.inbound.values()]
    attach = r.Attach(id=call.id, key=call.key or "", out_from=offsets[0], err_from=offsets[1])
    if call.abandoned:
        call.reattached = True
        return [replace(attach, output=False), r.Cancel(id=call.id)], []
    if isinstance(call.request, r.Attach):
        attach = replace(attach, output=call.request.output)
    call.reattached = call.started or any(offsets) or isinstance(call.request, r.Attach)
    messages: list[r.Message] = [attach if call.reattached else call.request, *_kept_input(call)]
    return messages, ([Rewound(call)] if any(void) else []) + _writable(call)


def _kept_input(call: Call) -> list[r.Message]:
    """Standard input that is not acknowledged."""
    outbound, key = call.outbound, call.key
    if outbound is None or outbound.kept is None or key is None:
        return []
    messages: list[r.Message] = [r.Stdin(id=call.id, key=key, off=offset, d=data) for offset, data in outbound.kept]
    if outbound.ended:
        messages.append(r.Stdin(id=call.id, key=key, off=outbound.sent, eof=True))
    return messages


def _writable(call: Call) -> list[Event]:
    return [Writable(call)] if call.outbound is not None else []


class Delivered:
    """Keys of results that reached this client, so that the daemon may forget them: named once, and again on a new link."""

    __slots__ = ("_told", "_untold")

    def __init__(self) -> None:
        self._told: deque[str] = deque(maxlen=_TOLD_KEYS)
        self._untold: list[str] = []

    def __len__(self) -> int:
        """How many are not named yet."""
        return len(self._untold)

    def add(self, key: str) -> None:
        self._untold.append(key)

    def take(self) -> tuple[str, ...]:
        """Those not named yet, which count as named from now on."""
        if not self._untold:
            return ()
        keys = tuple(self._untold)
        self._untold.clear()
        self._told.extend(keys)
        return keys

    def doubt(self) -> None:
        """The link on which they were named is lost."""
        self._untold[:0] = self._told
        self._told.clear()
