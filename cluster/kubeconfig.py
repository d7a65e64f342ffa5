"""Puts a cluster's context into the user's own kubeconfig and takes it out, as other tools for local clusters do."""

import fcntl
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_LISTS = ("clusters", "users", "contexts")


def users_file() -> Path:
    """The file kubectl would change: of those in `KUBECONFIG` the first that exists, else the last; or `~/.kube/config`."""
    named = [Path(one) for one in os.environ.get("KUBECONFIG", "").split(os.pathsep) if one]
    if not named:
        return Path.home() / ".kube" / "config"
    return next((one for one in named if one.exists()), named[-1])


def merged(old: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """`old` with the entries of `own`, whose context becomes the current one."""
    base = {"apiVersion": "v1", "kind": "Config", **without(old, own["current-context"])}
    lists = {kind: [*(base.get(kind) or []), *own[kind]] for kind in _LISTS}
    return {**base, **lists, "current-context": own["current-context"]}


def without(old: Mapping[str, Any], name: str, former: Sequence[str] = ()) -> dict[str, Any]:
    """`old` less the cluster, user and context of this name; where that was current, the first of the former that still is."""
    lists = {kind: [one for one in old.get(kind) or [] if one["name"] != name] for kind in _LISTS}
    current = old.get("current-context") or ""
    if current == name:
        left = {one["name"] for one in lists["contexts"]}
        current = next((one for one in former if one in left), "")
    return {**old, **lists, "current-context": current}


def current(kubectl: Path, path: Path) -> str:
    """The context that the file names as current, or nothing.

    Raises:
        subprocess.CalledProcessError: the file is no kubeconfig.
    """
    return str(_read(kubectl, path).get("current-context") or "")


def add(kubectl: Path, path: Path, own: Mapping[str, Any]) -> None:
    """Merge into the file; it and its directory are made when missing.

    Raises:
        subprocess.CalledProcessError: the file is no kubeconfig; it is left as it is.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o750)
    with _locked(path):
        _write(kubectl, path, merged(_read(kubectl, path), own))


def remove(kubectl: Path, path: Path, name: str, former: Sequence[str] = ()) -> None:
    """Take the context out, and make the one current that was before it; a file that then holds nothing goes.

    Raises:
        subprocess.CalledProcessError: the file is no kubeconfig; it is left as it is.
    """
    if not path.exists():
        return
    with _locked(path):
        left = without(_read(kubectl, path), name, former)
        if any(left[kind] for kind in _LISTS):
            _write(kubectl, path, left)
        else:
            path.unlink()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """The lock kubectl takes is the existence of a file; ours holds off only our own commands, and ends with the process."""
    handle = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _read(kubectl: Path, path: Path) -> dict[str, Any]:
    """kubectl reads the YAML for us."""
    if not path.exists() or not path.read_text().strip():
        return {}
    found: dict[str, Any] = json.loads(_view(kubectl, path, "json"))
    return found


def _write(kubectl: Path, path: Path, value: Mapping[str, Any]) -> None:
    """And writes it, next to the old file, which it then takes the place of."""
    path = path.resolve()
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".kubeconfig-") as scratch:
        new, plain = Path(scratch, "config"), Path(scratch, "config.json")
        plain.write_text(json.dumps(value))
        new.touch(mode=0o600)
        new.write_text(_view(kubectl, plain, "yaml"))
        new.replace(path)


def _view(kubectl: Path, path: Path, form: str) -> str:
    words = [str(kubectl), "config", "view", "--raw", f"--kubeconfig={path}", f"--output={form}"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout
