"""Compile `requirements/dev.lock` from pyproject.toml: everything a developer's environment holds, pinned, with hashes.

Run by `make lock`. Installing needs nothing but pip: `pip install --require-hashes -r requirements/dev.lock`.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "dev.lock"
HEADER = "# Every package of the development environment, pinned by hash. Written by `make lock`; do not edit.\n"


def wanted() -> list[str]:
    """The requirements of the package, of its extras and of the `dev` group."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = data["project"]
    extras = [item for extra in project["optional-dependencies"].values() for item in extra]
    return [*project["dependencies"], *extras, *data["dependency-groups"]["dev"], *data["build-system"]["requires"]]


def main() -> None:
    # A registry's address belongs to the machine, not to the lock: nothing about where packages came from is written.
    silent = ["--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host", "--no-emit-options", "--no-header"]
    command = [sys.executable, "-m", "piptools", "compile", "-q", "--generate-hashes", "--strip-extras", "--allow-unsafe"]
    command += [*silent, "--no-annotate", *sys.argv[1:], "-o", str(LOCK), "-"]
    subprocess.run(command, input="\n".join(wanted()), text=True, check=True)
    LOCK.write_text(HEADER + LOCK.read_text())


if __name__ == "__main__":
    main()
