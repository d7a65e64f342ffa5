"""What an agent changed in its tree: taken from its sandbox, guarded, laid over a clean twin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandlot.errors import SandboxFileError
from sandlot.sandbox import Diff, Sandbox
from sandlot.tasks.protect import Guard
from sandlot.tasks.verdict import LeftOut

MAX_CHANGE_BYTES: Final = 268_435_456
"""Data that a change may hold; it lies on the client's disk until it is judged. Source changes are below 1 MiB."""

EXAMPLES: Final = 5
"""Paths named for each reason why something was left out."""


@dataclass(frozen=True, slots=True)
class Change:
    """An agent's change to the task's tree, or why there is none. Close it when it is judged."""

    diff: Diff | None
    unusable: str = ""
    """Why it cannot be taken over: the agent's doing, so it is judged, as nothing."""

    def close(self) -> None:
        """Free its data. Idempotent."""
        if self.diff is not None:
            self.diff.close()


async def take_change(box: Sandbox, tree: str) -> Change:
    """All that differs from the image below `tree`. Call it when nothing of the agent's runs any more.

    Raises:
        Unsupported: the sandbox cannot tell exactly.
    """
    try:
        return Change(await box.changes(tree, max_bytes=MAX_CHANGE_BYTES))
    except SandboxFileError as error:  # beyond all bounds, or the tree is gone
        return Change(None, str(error))


def guarded(diff: Diff, guard: Guard) -> tuple[Diff, tuple[LeftOut, ...]]:
    """The part of a change that may reach the judge, and what may not, by reason.

    A directory that hidden tests lie in stays as it is in the clean tree, also when the agent replaced or removed it.
    """
    kinds = dict(zip(diff.paths, (entry.kind for entry in diff.entries), strict=True))
    left_out: dict[str, list[str]] = {}

    def keep(path: str) -> bool:
        if not path:
            return kinds[path] == "dir"  # a tree that was replaced as a whole leaves the clean one
        reason = guard.reason(path)
        if guard.replaces_directory(path):
            if kinds[path] == "dir":
                return False  # it comes along when something below it is kept
            reason = "directory of hidden tests"
        if reason is not None and kinds[path] != "dir":
            left_out.setdefault(reason, []).append(path)
        return reason is None

    kept = diff.filter(keep, merge=guard.replaces_directory)
    return kept, tuple(LeftOut(reason, len(paths), tuple(paths[:EXAMPLES])) for reason, paths in left_out.items())
