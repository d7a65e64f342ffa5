"""Every exec and file call of a rollout, as events: time, end, sizes and digests; contents too, by choice."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from sandlot.events import Scalar
from sandlot.rollout.phases import Clocks
from sandlot.sandbox import Record

Contents = Literal["digests", "all"]

SUBJECT_CHARS: Final = 500
"""Kept of a command's text in its event; its SHA-256 is always of the whole."""


class ContentStore:
    """Contents of calls as files named by their SHA-256, each once: `contents/ab/abcdef...`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "contents"
        self.failure: OSError | None = None
        """Why the last one could not be kept."""

    def keep(self, digest: str, data: bytes) -> None:
        """Write one content. Never raises: a recorder must not; `failure` tells."""
        path = self._folder / digest[:2] / digest
        try:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = path.with_name(f".{digest}")
                temporary.write_bytes(data)
                temporary.replace(path)
        except OSError as error:
            self.failure = error


@dataclass(slots=True)
class CallRecorder:
    """Records the calls of one rollout on one sandbox."""

    clocks: Clocks
    sandbox: str
    contents: ContentStore | None = None
    calls: int = 0

    def record(self, record: Record) -> None:
        """Append one event: kind `exec` for commands, `file` for the rest."""
        self.calls += 1
        result = record.result
        data: dict[str, Scalar] = {
            "call": record.kind,
            "subject": record.subject[:SUBJECT_CHARS],
            "subject_sha256": hashlib.sha256(record.subject.encode("utf-8", "surrogateescape")).hexdigest(),
            "began_s": record.began_s,
            "took_s": round(record.took_s, 6),
            "phase": self.clocks.phase,
        }
        if record.error:
            data["error"] = record.error
        if result is not None:
            data |= {"exit_code": result.exit_code, "signal": result.signal, "timed_out": result.timed_out}
            data |= {"oom_killed": result.oom_killed, "wall_s": round(result.usage.wall_s, 6)}
        data |= {f"{name}_bytes": size for name, size in record.sizes.items()}
        for name, digest in record.digests().items():
            data[f"{name}_sha256"] = digest
            if self.contents is not None:
                self.contents.keep(digest, record.contents[name])
        self.clocks.say(
            "exec" if result is not None or record.kind in ("exec", "start", "stream") else "file", self.sandbox, **data
        )
