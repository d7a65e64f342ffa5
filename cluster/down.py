"""Takes a cluster down, also one that never came up whole, and counts what is left of it."""

import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cluster import cgroups, firewall, kubeconfig, network, processes, state
from cluster.layout import Layout, state_root
from cluster.say import Say
from cluster.state import State

_MOUNT_POINTS = (Path("/var/lib/kubelet"), Path("/var/lib/cni"))


@dataclass(frozen=True)
class Left:
    """What `down` could not remove. All zero when it did its work."""

    processes: int = 0
    cgroups: int = 0
    mounts: int = 0
    interfaces: int = 0
    directories: int = 0

    def __bool__(self) -> bool:
        return any((self.processes, self.cgroups, self.mounts, self.interfaces, self.directories))

    def __str__(self) -> str:
        return (
            f"{self.processes} processes, {self.cgroups} cgroups, {self.mounts} mounts, "
            f"{self.interfaces} interfaces, {self.directories} directories"
        )


def down(name: str, say: Say) -> Left | None:
    """Take it down; what is left, or None when there was no such cluster."""
    with state.lock(f"cluster-{name}"):
        found = state.load(name)
        if found is None:
            return None
        say(f"{name}: stopping {len(cgroups.members(found.layout.cgroup))} processes")
        left = take_down(found)
        say(f"{name}: down; left behind: {left}")
        return left


def take_down(found: State) -> Left:
    """Undo everything that `up` did or began. The caller holds the cluster's lock."""
    layout = found.layout
    _forget_context(found)
    if found.boot == state.boot_id():
        _stop_components(found)
        cgroups.kill(layout.cgroup)
    network.remove_bridge(layout)
    if found.options.policies:
        firewall.clear()
    cgroups.remove(layout.cgroup)
    left = count(layout)
    if not left.processes:
        shutil.rmtree(layout.top, ignore_errors=True)
    with state.lock("slots"):
        _remove_mount_points()
    return Left(left.processes, left.cgroups, left.mounts, left.interfaces, int(layout.top.exists()))


def count(layout: Layout) -> Left:
    """What there is of the cluster right now, seen from outside."""
    mounts = Path("/proc/self/mountinfo").read_text()
    return Left(
        processes=len(cgroups.members(layout.cgroup)),
        cgroups=cgroups.count(layout.cgroup),
        mounts=mounts.count(f" {layout.top}/"),
        interfaces=int(network.is_ours(layout)),
        directories=int(layout.top.exists()),
    )


def _stop_components(found: State) -> None:
    """Those that start others, at once and without ceremony: nothing they could save is kept. The rest goes by cgroup."""
    makers = [found.processes[name] for name in ("kwok", "kubelet", "controller-manager") if name in found.processes]
    processes.stop(makers, grace_s=0.0, first=signal.SIGKILL)


def _forget_context(found: State) -> None:
    if not found.merged_into:
        return
    kubectl = Path(found.parts["kubernetes"], "bin", "kubectl")
    with suppress(subprocess.CalledProcessError, FileNotFoundError):  # the user's file is no longer one kubectl can read
        kubeconfig.remove(kubectl, Path(found.merged_into), found.layout.context, found.former_contexts)


def _remove_mount_points() -> None:
    """The last cluster takes the empty directories along that its kubelets' own lay over."""
    if state.names():
        return
    for path in _MOUNT_POINTS:
        with suppress(OSError):
            path.rmdir()
    with suppress(OSError):
        state_root().rmdir()
