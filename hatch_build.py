"""Build hook: compile the daemon and put it into the wheel.

The daemon is one static binary that needs no C library, so the wheel works on every Linux of its processor family; it
depends on no Python version and no ABI either. An editable install only needs the binary in the source tree.
"""

from __future__ import annotations

import filecmp
import json
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGED = "sandlot/_bin/sandlotd"
# Static, so the oldest baselines of both C libraries hold.
TAG = "py3-none-manylinux2014_{machine}.musllinux_1_1_{machine}"


class DaemonBuildHook(BuildHookInterface[Any]):
    """Runs `cargo build --release` before a wheel is put together."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        built = build_daemon(Path(self.root))
        if version == "editable":
            install(built, Path(self.root) / "src" / PACKAGED)
            return
        build_data["force_include"][str(built)] = PACKAGED
        build_data["pure_python"] = False
        build_data["tag"] = TAG.format(machine=platform.machine())


def build_daemon(root: Path) -> Path:
    """The release binary, built now; its mode is 0755."""
    cargo = shutil.which("cargo")
    if cargo is None:
        raise RuntimeError("building sandlot needs cargo, a stable Rust tool chain; or install a ready-made wheel")
    command = [
        cargo,
        "build",
        "--quiet",
        "--release",
        "--locked",
        "--bin",
        "sandlotd",
        "--message-format=json-render-diagnostics",
    ]
    done = subprocess.run(command, cwd=root / "daemon", check=True, stdout=subprocess.PIPE)
    # Where it lies depends on the target and on settings of this machine, so cargo is asked.
    for line in done.stdout.splitlines():
        path = json.loads(line).get("executable")
        if path and Path(path).name == "sandlotd":
            Path(path).chmod(0o755)
            return Path(path)
    raise RuntimeError("cargo built no sandlotd")


def install(source: Path, target: Path) -> None:
    """Put the binary in place by rename: a daemon that runs from the old file is not disturbed."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and filecmp.cmp(source, target, shallow=False):
        return
    fresh = target.with_name(target.name + ".new")
    shutil.copy2(source, fresh)
    fresh.replace(target)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    install(build_daemon(here), here / "src" / PACKAGED)
