"""The cluster's own cgroup in each hierarchy of this machine: everything the cluster runs is inside, so it can be found.

Both layouts: version 2 alone, and the older one with a hierarchy for each controller (with or without an empty version 2
hierarchy at `unified`).
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cluster import processes

_MOUNT = Path("/sys/fs/cgroup")


def hierarchies() -> list[Path]:
    """The mount point of each hierarchy."""
    if (_MOUNT / "cgroup.controllers").exists():
        return [_MOUNT]
    seen = {path.resolve() for path in _MOUNT.iterdir() if (path / "cgroup.procs").exists()}
    return sorted(seen)


def _anchor() -> Path:
    """The hierarchy in which the components themselves are kept apart: one is enough to find them."""
    found = hierarchies()
    return next((path for path in found if path.name in {"unified", "systemd"}), found[0])


def create(group: str) -> None:
    """Make `group` everywhere, and the home of the components in it."""
    for top in hierarchies():
        path = top / group
        path.mkdir(parents=True, exist_ok=True)
        _inherit_cpuset(top, path)
    components_home(group).mkdir(exist_ok=True)


def components_home(group: str) -> Path:
    """The directory of the group that each component joins."""
    return _anchor() / group / "components"


def _inherit_cpuset(top: Path, path: Path) -> None:
    """A new cpuset of the old layout is empty, and nothing may run in it."""
    for name in ("cpuset.cpus", "cpuset.mems"):
        whole = top / name
        for group in reversed([path, *path.relative_to(top).parents]):
            target = top / group / name
            if whole.exists() and not target.read_text().strip():
                target.write_text(whole.read_text())


def _tree(top: Path) -> Iterator[Path]:
    """Deepest first."""
    for here, _, _ in os.walk(top, topdown=False):
        yield Path(here)


def members(group: str, below: str = "") -> list[processes.Identity]:
    """The processes inside, in any hierarchy."""
    pids = {pid for top in hierarchies() for path in _tree(top / group / below) for pid in _pids(path)}
    return [one for pid in sorted(pids) if (one := processes.identify(pid)) is not None]


def members_of_pods(group: str) -> dict[str, list[processes.Identity]]:
    """The processes in the groups that the kubelet made for pods, by the pods' uids; no pod without processes."""
    pids: dict[str, set[int]] = {}
    for top in hierarchies():
        for path in _tree(top / group / "kubepods"):
            pod = next((part for part in path.relative_to(top).parts if part.startswith("pod")), None)
            if pod is not None:
                pids.setdefault(pod.removeprefix("pod"), set()).update(_pids(path))
    found = {uid: [one for pid in sorted(some) if (one := processes.identify(pid)) is not None] for uid, some in pids.items()}
    return {uid: alive for uid, alive in found.items() if alive}


def _pids(path: Path) -> set[int]:
    """Of one group; none when it goes away."""
    try:
        return {int(word) for word in (path / "cgroup.procs").read_text().split()} - {0}
    except OSError:
        return set()


def kill(group: str, timeout_s: float = 20.0) -> int:
    """Kill what is inside until nothing is; how many were left after `timeout_s`."""
    end = time.monotonic() + timeout_s
    while inside := members(group):
        if time.monotonic() >= end:
            return len(inside)
        thaw(group)
        for one in inside:
            if _is_member(one.pid, group):
                one.send(signal.SIGKILL)
        processes.wait_gone(inside, 1.0)
    return 0


def _is_member(pid: int, group: str) -> bool:
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return any(f"{line.split(':', 2)[2]}/".startswith(f"/{group}/") for line in lines)


def thaw(group: str) -> None:
    """Let frozen groups run again: a frozen process of the old layout does not even die."""
    for path in _tree(_MOUNT / "freezer" / group):
        with suppress(OSError):
            (path / "freezer.state").write_text("THAWED")


def remove(group: str, timeout_s: float = 10.0) -> None:
    """Remove the group from each hierarchy. A group is busy for a moment after its last process was killed."""
    end = time.monotonic() + timeout_s
    while count(group):
        for top in hierarchies():
            for path in _tree(top / group):
                with suppress(OSError):
                    path.rmdir()
        if time.monotonic() >= end:
            break
        time.sleep(0.02)
    for top in hierarchies():
        with suppress(OSError):  # the parent is shared with other clusters: it goes with the last one
            (top / group).parent.rmdir()


def count(group: str) -> int:
    """Directories of the group that exist."""
    return sum(1 for top in hierarchies() if (top / group).exists() for _ in _tree(top / group))
