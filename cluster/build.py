"""Builds the parts of a cluster, each once for one content: into the cache, atomically, one builder at a time."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster.parts import DebianPart, GoPart, Part
from cluster.say import Say
from cluster.tools import Tools

_PROGRESS_S = 15.0
_RECIPE = "1"  # counts up when this file builds differently from the same sources


class BuildError(Exception):
    """A part could not be built; the text has the end of what the tool said."""


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


def _target(part: Part) -> Path:
    return cache_root() / f"{part.name}-{fingerprint(part)}"


def fingerprint(part: Part) -> str:
    """Of everything that decides what is built, save the compiler."""
    found = hashlib.sha256(f"{_RECIPE} {part!r}".encode())
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
        _unpack(part, made, scratch, say)
        return
    _compile(part, made, say)
    for extra in part.extra:
        _EXTRAS[extra](part, made)


def _compile(part: GoPart, made: Path, say: Say) -> None:
    stamps = "".join(f" -X {_stamped(part, one)}" for one in part.stamps)
    words = ["nice", "-n", "10", "go", "build", "-v", "-mod=readonly", "-buildvcs=false", "-trimpath",
             f"-tags={part.tags}", f"-ldflags=-s -w{stamps}", "-o", f"{made}/bin/", "tool"]  # fmt: skip
    _run_long(words, part, say)


def _run_long(words: Sequence[str], part: GoPart, say: Say) -> None:
    """Run it, saying now and then how many packages it has done."""
    say(f"{part.name}: building")
    env = {**os.environ, "CGO_ENABLED": str(int(part.cgo)), "GOFLAGS": "", "GOWORK": "off"}
    lines: list[str] = []
    with subprocess.Popen(words, cwd=part.source, env=env, stderr=subprocess.PIPE, text=True) as running:
        finished = threading.Event()
        teller = threading.Thread(target=_tell, args=(finished, part.name, lines, say))
        teller.start()
        try:
            lines.extend(running.stderr or ())
        finally:
            finished.set()
            teller.join()
    if running.returncode:
        raise BuildError(f"{part.name}: go build failed\n{''.join(lines[-20:])}")
    say(f"{part.name}: built")


def _tell(finished: threading.Event, name: str, lines: Sequence[str], say: Say) -> None:
    while not finished.wait(_PROGRESS_S):
        say(f"{name}: {len(lines)} steps done")


def _stamped(part: GoPart, template: str) -> str:
    """`variable=value` with the version, without its `v`, of the module in braces."""
    variable, _, rest = template.partition("=")
    before, _, after = rest.partition("{")
    module, _, behind = after.partition("}")
    return f"{variable}={before}{_module(part, module)['Version'].removeprefix('v')}{behind}"


def _module(part: GoPart, module: str) -> dict[str, str]:
    """Version and directory of a module, fetched when it is not there."""
    env = {**os.environ, "GOWORK": "off"}
    done = subprocess.run(
        ["go", "mod", "download", "-json", module], cwd=part.source, env=env, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise BuildError(f"{part.name}: {module} cannot be fetched\n{done.stderr or done.stdout}")
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _pause(part: GoPart, made: Path) -> None:
    """What holds a pod's namespaces: Kubernetes' own, 40 lines of C in its module."""
    source = Path(_module(part, "k8s.io/kubernetes")["Dir"], "build", "pause", "linux", "pause.c")
    words = ["cc", "-Os", "-static", "-s", "-DVERSION=sandlot", "-o", str(made / "bin" / "pause"), str(source)]
    _run(words, f"{part.name}: pause")


def _stages(part: GoPart, made: Path) -> None:
    """How fake nodes and pods behave, from kwok's module: ready at once, gone at once, and few heartbeats."""
    top = Path(_module(part, "sigs.k8s.io/kwok")["Dir"], "kustomize", "stage")
    wanted = ["node/fast/node-initialize.yaml", "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
              "pod/fast/pod-ready.yaml", "pod/fast/pod-complete.yaml", "pod/fast/pod-delete.yaml"]  # fmt: skip
    (made / "stages.yaml").write_text("---\n".join((top / name).read_text() for name in wanted))


def _etcd(part: GoPart, made: Path) -> None:
    """Its command has the name of its directory."""
    (made / "bin" / "server").replace(made / "bin" / "etcd")


def _gvisor(part: GoPart, made: Path) -> None:
    """containerd finds a shim by its name."""
    (made / "bin" / "shim").replace(made / "bin" / "containerd-shim-runsc-v1")


_EXTRAS = {"pause": _pause, "stages": _stages, "etcd": _etcd, "gvisor": _gvisor}


def _unpack(part: DebianPart, made: Path, scratch: Path, say: Say) -> None:
    packages = sorted({package for package, _, _ in part.files})
    say(f"{part.name}: fetching {', '.join(packages)}")
    try:
        _run(["apt-get", "-q", "download", *packages], part.name, cwd=scratch)
    except BuildError:
        _run(["apt-get", "-q", "update"], part.name)  # the lists are missing, or too old
        _run(["apt-get", "-q", "download", *packages], part.name, cwd=scratch)
    for archive in scratch.glob("*.deb"):
        _run(["dpkg-deb", "-x", str(archive), str(scratch / "root")], part.name)
    for _, inside, target in part.files:
        (scratch / "root" / inside).replace(made / target)


def _run(words: Sequence[str], name: str, cwd: Path | None = None) -> None:
    try:
        done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except FileNotFoundError as error:
        raise BuildError(f"{name}: no {words[0]} on PATH") from error
    if done.returncode:
        raise BuildError(f"{name}: {words[0]} failed\n{done.stdout[-2000:]}")
