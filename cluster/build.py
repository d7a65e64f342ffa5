"""Builds the parts of a cluster, each once for one content: into the cache, atomically, one builder at a time."""

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path

from cluster import debian, golang
from cluster.parts import DebianPart, GoPart, Part
from cluster.say import Say
from cluster.toolrun import BuildError
from cluster.tools import Tools

_RECIPE = "1"  # counts up when the same sources are built differently


def cache_root() -> Path:
    """`SANDLOT_CLUSTER_CACHE`, or `sandlot-cluster` in the user's cache directory."""
    told = os.environ.get("SANDLOT_CLUSTER_CACHE")
    return Path(told) if told else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sandlot-cluster"


def build(parts: Sequence[Part], say: Say) -> Tools:
    """Build what the cache does not have yet.

    Raises:
        BuildError: a tool is missing or failed (the machine's or the network's fault).
    """
    if (lacking := obstacle(parts)) is not None:
        raise BuildError(lacking)
    return Tools({part.name: _have(part, say) for part in parts})


def _have(part: Part, say: Say) -> Path:
    target = _target(part)
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with _one_builder(target.parent / f".{part.name}.lock", part.name, say):
        if not target.exists():
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{part.name}-") as scratch:
                made = Path(scratch) / "part"
                (made / "bin").mkdir(parents=True)
                _make(part, made, Path(scratch), say)
                made.replace(target)
    return target


def obstacle(parts: Sequence[Part]) -> str | None:
    """What this machine lacks to build the parts that the cache does not have; None when nothing."""
    missing = [part for part in parts if not _target(part).exists()]
    if any(isinstance(part, GoPart) for part in missing) and shutil.which("go") is None:
        return "no go on PATH: install Go (the version that cluster/go/kubernetes/go.mod names, or newer)"
    if any(isinstance(part, DebianPart) for part in missing) and shutil.which("apt-get") is None:
        return "no apt-get: the image registry and network plugins of a cluster come from Debian packages"
    return None


def is_built(parts: Sequence[Part]) -> bool:
    """Whether the cache has all of them."""
    return all(_target(part).exists() for part in parts)


def _target(part: Part) -> Path:
    return cache_root() / f"{part.name}-{fingerprint(part)}"


def fingerprint(part: Part) -> str:
    """Of everything that decides what is built, save the compiler."""
    told = {one.name: value for one in fields(part) if (value := getattr(part, one.name)) != one.default}
    found = hashlib.sha256(f"{_RECIPE} {told}".encode())
    if isinstance(part, GoPart):
        for path in sorted(part.source.iterdir()):
            found.update(path.name.encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]


@contextmanager
def _one_builder(path: Path, name: str, say: Say) -> Iterator[None]:
    handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{name}: being built by another process, waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _make(part: Part, made: Path, scratch: Path, say: Say) -> None:
    if isinstance(part, DebianPart):
        debian.unpack(part, made, scratch, say)
    else:
        golang.build(part, made, scratch, say)
