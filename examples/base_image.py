"""An image that tasks can be laid over where there is no `host` image, as on a cluster: Debian with Python and git.

    python examples/base_image.py OUT.tar

Made by debootstrap and `sandlot image build`; no container engine and no image registry is needed. As root, a few minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

RELEASE = "bookworm"
PACKAGES = "python3-venv,git,ca-certificates"
NOT_NEEDED = ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man")
OF_THIS_MACHINE = ("etc/resolv.conf", "etc/hostname", "etc/apt/sources.list")
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    make(parser.parse_args().out)
    return 0


def make(out: Path) -> None:
    """Make the image unless it is there."""
    if out.exists():
        return
    if os.geteuid() != 0 or shutil.which("debootstrap") is None:
        sys.exit("base_image: this needs root and debootstrap (apt-get install debootstrap)")
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".base-") as scratch:
        root = Path(scratch, "root")
        _run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(root))
        for name in NOT_NEEDED:
            shutil.rmtree(root / name, ignore_errors=True)
            (root / name).mkdir(parents=True)
        for name in OF_THIS_MACHINE:
            (root / name).unlink(missing_ok=True)
        words = ("image", "build", str(root), str(out), "--env", PATH, "--tag", "sandlot/base:latest")
        _run(sys.executable, "-m", "sandlot.cli.main", *words)


def _run(*command: str) -> None:
    print(f"$ {' '.join(command)}", file=sys.stderr, flush=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
