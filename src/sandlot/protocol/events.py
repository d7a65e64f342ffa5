"""What a session tells whoever drives it. A `Broken` is always the last of its list."""

from __future__ import annotations

from typing import NamedTuple

from sandlot.errors import SandlotError
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.protocol.calls import Call


class Opened(NamedTuple):
    """The daemon said hello and we speak its version."""

    welcome: a.Welcome


class Arrived(NamedTuple):
    """Part of an answer: output, data, an entry, ..."""

    call: Call
    message: r.Message


class Ended(NamedTuple):
    """The call is over: its closing message, or the error it ended with."""

    call: Call
    outcome: r.Message | SandlotError


class Writable(NamedTuple):
    """More may be sent on the call's stream 0."""

    call: Call


class Restarted(NamedTuple):
    """The link was lost and the call was sent again from its start: what arrived is void, its data is to be sent again."""

    call: Call


class Rewound(NamedTuple):
    """The link was lost and the command continues from what its owner had consumed: what it had not, comes again."""

    call: Call


class Broken(NamedTuple):
    """The connection is of no more use: the daemon broke the contract, or refused us. Close the session."""

    error: SandlotError


Event = Opened | Arrived | Ended | Writable | Restarted | Rewound | Broken
