"""What is kept about a cluster between commands: one file, written with each step so that an interrupted `up` can be undone."""

import fcntl
import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from cluster import network
from cluster.layout import SLOTS, Layout, state_root
from cluster.options import USUAL, Options
from cluster.processes import Identity

_LOCKS = Path("/run/sandlot-cluster")


class ClaimError(Exception):
    """This machine has no room for one more cluster."""


@dataclass(frozen=True)
class State:
    """A cluster as it was last seen by one of our commands."""

    layout: Layout
    boot: str
    """The boot it was started in: pids, start times and mounts mean nothing in another."""

    options: Options = USUAL
    parts: dict[str, str] = field(default_factory=dict)
    """Where each built part lies."""

    processes: dict[str, Identity] = field(default_factory=dict)
    """By component, in the order in which they were started."""

    merged_into: str = ""
    """The user's kubeconfig that holds this cluster's context, or nothing."""

    former_contexts: tuple[str, ...] = ()
    """What was current there before, the latest first: that of another cluster of ours may be gone before this one."""

    ready: bool = False
    """Whether `up` came to its end."""

    def with_process(self, component: str, identity: Identity) -> "State":
        return replace(self, processes={**self.processes, component: identity})

    def save(self) -> None:
        """Write it so that a reader sees the old or the new one whole."""
        value = {
            "name": self.layout.name,
            "slot": self.layout.slot,
            "uid": self.layout.uid,
            "boot": self.boot,
            "options": asdict(self.options),
            "parts": self.parts,
            "processes": {name: [one.pid, one.started] for name, one in self.processes.items()},
            "merged_into": self.merged_into,
            "former_contexts": self.former_contexts,
            "ready": self.ready,
        }
        new = self.layout.state_file.with_suffix(".new")
        new.write_text(json.dumps(value, indent=2) + "\n")
        new.replace(self.layout.state_file)


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def load(name: str) -> State | None:
    """The cluster of this name, running or not; None when there is none."""
    top = state_root() / name
    try:
        value = json.loads((top / "state.json").read_text())
    except FileNotFoundError:
        return None
    return State(
        layout=Layout(value["name"], value["slot"], value["uid"], top),
        boot=value["boot"],
        options=Options(**value["options"] | {"runtimes": tuple(value["options"]["runtimes"])}),
        parts=value["parts"],
        processes={name: Identity(pid, started) for name, (pid, started) in value["processes"].items()},
        merged_into=value["merged_into"],
        former_contexts=tuple(value.get("former_contexts", ())),
        ready=value["ready"],
    )


def names() -> list[str]:
    """All clusters with state on this machine."""
    root = state_root()
    return sorted(path.parent.name for path in root.glob("*/state.json")) if root.exists() else []


@contextmanager
def lock(what: str) -> Iterator[None]:
    """One holder at a time on this machine; the file stays, on a file system that ends with the boot."""
    _LOCKS.mkdir(parents=True, exist_ok=True)
    handle = os.open(_LOCKS / f"{what}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def claim(name: str, options: Options) -> State:
    """Take a free slot for a new cluster: its state file and its bridge, which is the mark other clusters see.

    Raises:
        ClaimError: all slots are taken, or another cluster enforces policies, or the kernel makes no bridge.
    """
    root = state_root()
    with lock("slots"):
        root.mkdir(parents=True, exist_ok=True)
        others = [found for one in names() if (found := load(one)) is not None]
        enforcing = [found.layout.name for found in others if found.options.policies]
        if options.policies and enforcing:
            raise ClaimError(f"{enforcing[0]} enforces policies already, and only one cluster can: the rules are the machine's")
        taken = {found.layout.slot for found in others}
        for slot in range(SLOTS):
            layout = Layout(name, slot, secrets.token_hex(6), root / name)
            if slot in taken or network.exists(layout.bridge) or not network.ports_free(layout.ports):
                continue
            layout.top.mkdir(mode=0o711, exist_ok=True)
            state = State(layout, boot_id(), options)
            state.save()
            try:
                network.make_bridge(layout, filtered=options.policies)
            except subprocess.CalledProcessError as error:
                raise ClaimError(f"no bridge {layout.bridge}: {error.stderr.strip()}") from error
            return state
    raise ClaimError(f"all {SLOTS} slots for clusters are taken (`python -m cluster status` lists them)")
