"""How a provider comes to be: one function for each kind of backend."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sandlot.backends.local import LocalBackend
from sandlot.backends.local.images.store import Progress
from sandlot.events import EventLog
from sandlot.policy import Settings
from sandlot.provider import Provider

IdMode = Literal["range-root", "range-rootless", "single", "nested"]


def local(
    settings: Settings | None = None,
    *,
    events: EventLog | None = None,
    cache: Path | str | None = None,
    mode: IdMode | None = None,
    progress: Progress | None = None,
) -> Provider:
    """A provider of sandboxes on this machine. Use it as `async with sandlot.local() as provider`.

    Entering it starts one daemon process that makes the sandboxes; leaving it deletes every attached one. Should this
    process die instead, in whatever way, the daemon deletes them. A forked worker opens a provider of its own.

    Args:
        settings: pace, time-outs and retries; None: the defaults of `Settings`.
        events: where the provider writes what happens; None: a log in memory.
        cache: where unpacked image layers are kept; None: `SANDLOT_CACHE`, else `~/.cache/sandlot`.
        mode: how sandbox users become users of this machine; None: the best there is. `sandlot doctor` says which.
        progress: called with each step while an image is being unpacked; None: the steps go to the log `sandlot`.

    Raises:
        Unsupported: on entering, when this machine or user cannot have sandboxes; the hint says what is missing.
    """
    backend = LocalBackend(cache=None if cache is None else Path(cache), mode=mode, progress=progress)
    return Provider(backend, settings, events=events)
