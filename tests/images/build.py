"""Make the task images that the tests run on, once per machine, from what Debian packages and a C compiler give.

    python -m tests.images.build        makes all of them and prints where they are

Each is an OCI layout in one folder, so that the product's own reader and unpacker are on the way of every test.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.images.oci import ImageConfig, Layout, archive_of, tar_of

DEBIAN_PACKAGES = "python3-minimal,git,procps,sudo,passwd"
HERE = Path(__file__).parent
VERSION = "3"  # change it when a recipe below changes


def cache_folder() -> Path:
    """Where the images are kept between runs: SANDLOT_TEST_CACHE, else the user's cache."""
    chosen = os.environ.get("SANDLOT_TEST_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "sandlot-tests"


def _debian(root: Path) -> ImageConfig:
    command = ["debootstrap", "--variant=minbase", f"--include={DEBIAN_PACKAGES}", "bookworm", str(root)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    for kept in ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man"):
        shutil.rmtree(root / kept, ignore_errors=True)
        (root / kept).mkdir(parents=True)
    (root / "root" / ".bashrc").write_text("export FROM_BASHRC=1\n")
    return ImageConfig(env=("PATH=/opt/x/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "FROM_IMAGE=yes"))


def _busybox(root: Path) -> ImageConfig:
    binary = shutil.which("busybox")
    if binary is None:
        raise FileNotFoundError("busybox is missing: install Debian's busybox-static")
    for folder in ("bin", "etc", "tmp", "root", "home"):
        (root / folder).mkdir()
    (root / "tmp").chmod(0o1777)
    shutil.copy(binary, root / "bin" / "busybox")
    names = subprocess.run([binary, "--list"], check=True, capture_output=True, text=True).stdout.split()
    for name in names:
        if name != "busybox":
            (root / "bin" / name).symlink_to("busybox")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\nwheel:x:10:nobody\nnogroup:x:65534:\n")
    return ImageConfig(env=("PATH=/bin",))


def _static(root: Path) -> ImageConfig:
    (root / "only").mkdir()
    subprocess.run(["cc", "-static", "-Os", "-o", str(root / "only" / "tool"), str(HERE / "static.c")], check=True)
    return ImageConfig(env=("PATH=/only",))


def _nonroot(root: Path) -> ImageConfig:
    base = _busybox(root)
    for path in [root, *root.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o755)
    return ImageConfig(env=base.env, user="1000")


def _workdir(root: Path) -> ImageConfig:
    base = _busybox(root)
    return ImageConfig(env=base.env, workdir="/app/not there yet/deep")


def _entrypoint(root: Path) -> ImageConfig:
    base = _busybox(root)
    return ImageConfig(env=base.env, workdir="/app", entrypoint=("/bin/false", "entry"), cmd=("never",))


RECIPES: dict[str, Callable[[Path], ImageConfig]] = {
    "debian": _debian,
    "busybox": _busybox,
    "static": _static,
    "nonroot": _nonroot,
    "workdir": _workdir,
    "entrypoint": _entrypoint,
}


def image(name: str) -> str:
    """The reference (`oci:...`) of one of `RECIPES`, made now if it is not there yet. Safe to call from several processes."""
    folder = cache_folder() / f"v{VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / name
    with open(folder / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _make(name, target)
    return f"oci:{target}@{name}"


def archive(name: str) -> str:
    """The same image as one archive file (`oci-archive:...`)."""
    layout = Path(image(name).removeprefix("oci:").rpartition("@")[0])
    target = layout.with_suffix(".tar")
    if not target.exists():
        part = target.with_suffix(".part")
        archive_of(layout, part)
        part.rename(target)
    return f"oci-archive:{target}@{name}"


def _make(name: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=f"{name}.") as scratch:
        root = Path(scratch) / "root"
        root.mkdir(mode=0o755)
        config = RECIPES[name](root)
        made = Path(scratch) / "layout"
        Layout(made).image(name, [tar_of(root)], config)
        made.rename(target)


def main() -> None:
    for name in RECIPES:
        print(image(name), flush=True)


if __name__ == "__main__":
    main()
