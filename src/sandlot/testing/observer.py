"""An observer from outside: what one client's sandboxes consist of, read from /proc and the cgroup trees."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass
from pathlib import Path

NAMESPACES = ("user", "mnt", "pid", "ipc", "uts", "net", "cgroup")


@dataclass(frozen=True, slots=True)
class Footprint:
    """Everything on the machine that belongs to one client: taken while it lives, asked for again after its end."""

    processes: frozenset[tuple[int, int]]
    """(pid, start time in ticks): a pid alone may be used again."""
    namespaces: frozenset[str]
    cgroups: frozenset[str]
    directories: frozenset[str]
    mounts: frozenset[str]

    def without(self, others: Footprint) -> Footprint:
        """This, but for what was seen before: the client may have other children than its sandboxes."""
        return Footprint(
            processes=self.processes - others.processes,
            namespaces=self.namespaces - others.namespaces,
            cgroups=self.cgroups - others.cgroups,
            directories=self.directories - others.directories,
            mounts=self.mounts - others.mounts,
        )

    def left(self) -> dict[str, list[str]]:
        """What of it still exists, by kind; empty when nothing does."""
        now = _processes()
        alive = {pid for pid, start in self.processes if now.get(pid, (0, 0))[1] == start}
        # The number of a namespace that is gone is the next one's, whoever makes that: only what our own processes are in
        # counts, and those are ours that descend from one of them or are in one of our groups.
        ours = _descendants(alive, now) | {pid for pid in now if not self.cgroups.isdisjoint(_cgroup_folders(pid))}
        in_use = {namespace for pid in ours for namespace in _namespaces(pid)}
        found = {
            "processes": sorted(map(str, alive | ours)),
            "namespaces": sorted(self.namespaces & in_use),
            "cgroups": [path for path in self.cgroups if os.path.isdir(path)],
            "directories": [path for path in self.directories if os.path.lexists(path)],
            "mounts": sorted(self.mounts & _mount_points()),
        }
        return {kind: names for kind, names in found.items() if names}

    def wait_until_nothing_is_left(self, seconds: float) -> dict[str, list[str]]:
        """What is left after at most `seconds`; returns as soon as nothing is."""
        deadline = time.monotonic() + seconds
        while (rest := self.left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return rest


def footprint(client: int) -> Footprint:
    """Everything that descends from process `client` (itself excepted), with its namespaces, cgroups and runtime files."""
    table = _processes()
    family = _descendants({client}, table) | _sessions_of(client, table)
    family.discard(client)
    own = set(_namespaces(os.getpid()))
    mine = _cgroup_folders(os.getpid())
    folders = {folder for pid in family for folder in _runtime_folders(pid)}
    return Footprint(
        processes=frozenset((pid, table[pid][1]) for pid in family if pid in table),
        namespaces=frozenset(name for pid in family for name in _namespaces(pid)) - own,
        cgroups=frozenset(path for pid in family for path in _cgroup_folders(pid)) - mine,
        directories=frozenset(folders),
        mounts=frozenset(point for point in _mount_points() if any(point.startswith(folder) for folder in folders)),
    )


def _processes() -> dict[int, tuple[int, int]]:
    """pid -> (parent, start time)."""
    found: dict[int, tuple[int, int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError, ValueError, IndexError):
                rest = Path("/proc", name, "stat").read_text().rpartition(")")[2].split()
                if rest[0] not in ("Z", "X"):
                    found[int(name)] = (int(rest[1]), int(rest[19]))
    return found


def _descendants(roots: set[int], table: dict[int, tuple[int, int]]) -> set[int]:
    """These processes and all below them."""
    family = set(roots)
    while more := {pid for pid, (parent, _) in table.items() if parent in family} - family:
        family |= more
    return family


def _sessions_of(client: int, table: dict[int, tuple[int, int]]) -> set[int]:
    """Hosts and wardens in sessions of their own name their client in their arguments; their children count too."""
    found: set[int] = set()
    for pid in table:
        with contextlib.suppress(OSError):
            words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
            if b"--client-pid" in words and str(client).encode() in words:
                found |= _descendants({pid}, table)
    return found


def _namespaces(pid: int) -> list[str]:
    found = []
    for kind in NAMESPACES:
        with contextlib.suppress(OSError):
            found.append(os.readlink(f"/proc/{pid}/ns/{kind}"))
    return found


def _cgroup_folders(pid: int) -> set[str]:
    """Folders of the groups a process is in, on every hierarchy that is mounted in the usual place."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc", str(pid), "cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            for mount in [controllers.split(",")[0].removeprefix("name="), "unified", ""]:
                folder = f"/sys/fs/cgroup/{mount}{path}".rstrip("/")
                if path != "/" and os.path.isdir(folder):
                    found.add(folder)
    return found


def _runtime_folders(pid: int) -> set[str]:
    """A host's own folder below its runtime directory, known by the lock that the host and its warden hold open in it."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
        if b"--runtime-dir" not in words:
            return found
        below = os.path.realpath(os.fsdecode(words[words.index(b"--runtime-dir") + 1]))
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                path = os.readlink(f"/proc/{pid}/fd/{number}")
                if path.startswith(below + "/") and path.endswith("/state"):
                    found.add(os.path.dirname(path))
    return found


def _mount_points() -> set[str]:
    return {line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()}


def daemons(client: int) -> list[int]:
    """The client's host, its warden and every init below it, as pids, lowest first: an init comes after its host."""
    table = _processes()
    family = _descendants({client}, table) | _sessions_of(client, table)
    return sorted(pid for pid in family - {client} if _runs_sandlotd(pid))


def _runs_sandlotd(pid: int) -> bool:
    """By its arguments: an init runs from a sealed file in memory, whose name says nothing."""
    try:
        words = Path("/proc", str(pid), "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return os.path.basename(words[0]) == b"sandlotd" and len(words) > 1 and words[1] in (b"host", b"warden", b"init")
