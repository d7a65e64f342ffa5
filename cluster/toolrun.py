"""Tools that the build runs, and what is told when they fail."""

import subprocess
from collections.abc import Sequence
from pathlib import Path


class BuildError(Exception):
    """A part could not be built; the text has the end of what the tool said."""


def run(words: Sequence[str], what: str, cwd: Path | None = None) -> None:
    """Run it to its end.

    Raises:
        BuildError: it is not there, or it failed.
    """
    try:
        done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"{what}: no {words[0]} on PATH") from error
    if done.returncode:
        raise BuildError(f"{what}: {words[0]} failed\n{done.stdout[-2000:]}")
