"""Where the daemon's binary is."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Final

from sandlot.errors import Unsupported

VARIABLE: Final = "SANDLOT_DAEMON"
"""Names another binary than the one in the package: for trying a build."""


def find_daemon(environ: Mapping[str, str] = os.environ) -> Path:
    """The binary that `SANDLOT_DAEMON` names, else the one in the package. Absolute.

    Raises:
        Unsupported: it is missing or cannot be executed.
    """
    named = environ.get(VARIABLE)
    if named:
        return check_daemon(Path(named).absolute(), hint=f"{VARIABLE} names it")
    packed = Path(str(files("sandlot"))) / "_bin" / "sandlotd"
    return check_daemon(packed, hint="install a built wheel, or run `make setup` in the source tree")


def check_daemon(path: Path, *, hint: str = "") -> Path:
    """The path, when it can be executed. Raises as `find_daemon`."""
    if not path.is_file():
        raise Unsupported(f"the daemon {path} does not exist", hint=hint)
    if not os.access(path, os.X_OK):
        raise Unsupported(
            f"the daemon {path} cannot be executed", hint=f"chmod 755 {path}, on a file system mounted without noexec"
        )
    return path
