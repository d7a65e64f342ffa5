"""Builds commands of pinned Go modules, and what their modules bring besides."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path

from cluster.parts import GoPart
from cluster.say import Say
from cluster.toolrun import BuildError, run

_PROGRESS_S = 15.0


def build(part: GoPart, made: Path, scratch: Path, say: Say) -> None:
    """Build a part into `made`.

    Raises:
        BuildError: a module cannot be fetched, or does not compile.
    """
    stamps = "".join(f" -X {_stamped(part, one)}" for one in part.stamps)
    words = ["nice", "-n", "10", "go", "build", "-v", f"-modfile={_modfile(part, scratch)}", "-buildvcs=false", "-trimpath",
             f"-tags={part.tags}", f"-ldflags=-s -w{stamps}", "-o", f"{made}/bin/", "tool"]  # fmt: skip
    _run_long(words, part, say)
    for extra in part.extra:
        _EXTRAS[extra](part, made)


def _modfile(part: GoPart, scratch: Path) -> Path:
    """The part's go.mod, or a copy that takes a patched module from `scratch`."""
    if part.patch is None:
        return part.source / "go.mod"
    patch, copy = part.patch, scratch / "patched"
    shutil.copytree(_module(part, patch.module)["Dir"], copy)
    source = copy / patch.file
    text = source.read_text()
    if text.count(patch.old) != 1:
        raise BuildError(f"{part.name}: the patch of {patch.file} does not fit this version of {patch.module}")
    source.chmod(0o644)
    source.write_text(text.replace(patch.old, patch.new))
    shutil.copy(part.source / "go.sum", scratch)
    changed = scratch / "go.mod"
    shutil.copy(part.source / "go.mod", changed)
    run(["go", "mod", "edit", f"-replace={patch.module}={copy}", str(changed)], part.name)
    return changed


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
    words = ["go", "mod", "download", "-json", module]
    done = subprocess.run(words, cwd=part.source, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{part.name}: {module} cannot be fetched\n{done.stderr or done.stdout}")
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _pause(part: GoPart, made: Path) -> None:
    """What holds a pod's namespaces: Kubernetes' own, 40 lines of C in its module."""
    source = Path(_module(part, "k8s.io/kubernetes")["Dir"], "build", "pause", "linux", "pause.c")
    words = ["cc", "-Os", "-static", "-s", "-DVERSION=sandlot", "-o", str(made / "bin" / "pause"), str(source)]
    run(words, f"{part.name}: pause")


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
