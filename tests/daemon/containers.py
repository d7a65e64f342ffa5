"""Containers as a kubelet has them made, by runc, with the daemon as their first process; no cluster is needed."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandlot.daemon_binary import find_daemon
from tests.daemon.sealed import Provider
from tests.daemon.wire import Box
from tests.images.build import image

# What containerd gives by default.
NAMES = "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP"
NAMES += " NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE"
CAPABILITIES = tuple(f"CAP_{name}" for name in NAMES.split())
MASKED = ["/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list"]
MASKED += ["/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"]
READ_ONLY = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"]
PATIENCE_S = 240.0
"""Longer than anything takes in an emulated machine on a busy one; reached only by a fault."""
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Volume:
    """One more mount of a container: a directory or file of the machine."""

    source: Path
    target: str
    options: tuple[str, ...] = ("rw",)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a pod's spec says of a container."""

    image: str = "busybox"
    user: tuple[int, int] = (0, 0)
    groups: tuple[int, ...] = ()
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict)
    memory_bytes: int | None = None
    oom_group: bool = False
    """As kubelets have it on cgroup version 2: one process out of memory, and all of the container is killed."""
    capabilities: Sequence[str] = CAPABILITIES
    no_new_privs: bool = False
    read_only: bool = False
    volumes: Sequence[Volume] = ()
    oom_score_adj: int = 900


class Container:
    """A running container and the way to its daemon."""

    def __init__(self, folder: Path, wanted: Wanted) -> None:
        self.folder = folder
        self.name = f"sandlot-test-{os.getpid()}-{next(_numbers)}"
        self._patience = time.monotonic() + PATIENCE_S
        self._boxes: list[Box] = []
        self._bridges: list[subprocess.Popen[bytes]] = []
        self._provider = Provider()
        told = {"SANDLOT_NAME": self.name, **self._provider.environment(), **wanted.env}
        (folder / "config.json").write_text(json.dumps(_config(self.name, folder, wanted, told)))
        self.log = folder / "log"
        with open(self.log, "wb") as log:
            command = [*self._runc(), "run", "--bundle", str(folder), self.name]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def open(self) -> Box:
        """A new link that has said hello, through what `kubectl exec` would start. Waits until the daemon is there."""
        while True:
            ours, theirs = socket.socketpair()
            with theirs:
                words = [*self._runc(), "exec", self.name, "/sandlot/sandlotd", "connect"]
                bridge = subprocess.Popen(words, stdin=theirs.fileno(), stdout=theirs.fileno(), stderr=subprocess.PIPE)
            ours.settimeout(PATIENCE_S)
            try:
                box = Box(self._provider.receive(ours), self.name, {})
            except EOFError:
                ours.close()
                _, said = bridge.communicate()
                assert self.process.poll() is None, self.log.read_text()
                assert time.monotonic() < self._patience, said.decode()
                time.sleep(0.02)
                continue
            box.sock.settimeout(PATIENCE_S)
            self._boxes.append(box)
            self._bridges.append(bridge)
            return box

    def pid(self) -> int:
        """The daemon's number on this machine."""
        state = subprocess.run([*self._runc(), "state", self.name], check=True, capture_output=True, text=True)
        pid: int = json.loads(state.stdout)["pid"]
        return pid

    def run_beside(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """What `kubectl exec` does."""
        return subprocess.run([*self._runc(), "exec", self.name, *argv], capture_output=True, text=True, check=False)

    def signal(self, name: str) -> None:
        """From outside, as a kubelet sends it."""
        subprocess.run([*self._runc(), "kill", self.name, name], check=True)

    def wait(self) -> int:
        """Its exit code."""
        return self.process.wait(PATIENCE_S)

    def remove(self) -> None:
        for box in self._boxes:
            box.close()
        # Before the bridges are waited for: they end with it, whatever the daemon does.
        subprocess.run([*self._runc(), "delete", "--force", self.name], capture_output=True, check=False, timeout=PATIENCE_S)
        for bridge in self._bridges:
            bridge.communicate(timeout=PATIENCE_S)
        self.process.wait(PATIENCE_S)

    def _runc(self) -> list[str]:
        return ["runc", "--root", str(self.folder / "state")]


@contextlib.contextmanager
def running(wanted: Wanted) -> Iterator[Container]:
    """A container of a test image, its root an overlay as containerd makes it. Nothing of it is left afterwards."""
    lower = unpacked(wanted.image)
    with tempfile.TemporaryDirectory(prefix="sandlot-pod-", dir=os.environ.get("SANDLOT_TEST_SCRATCH", "/var/tmp")) as scratch:
        folder = Path(scratch)
        for name in ("root", "upper", "work", "delivery", "files"):
            (folder / name).mkdir(mode=0o755)
        folder.chmod(0o755)
        shutil.copy(find_daemon(), folder / "delivery" / "sandlotd")
        options = f"lowerdir={lower},upperdir={folder}/upper,workdir={folder}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(folder / "root")], check=True)
        try:
            container = Container(folder, wanted)
            try:
                yield container
            finally:
                container.remove()
        finally:
            subprocess.run(["umount", str(folder / "root")], check=True)


def unpacked(name: str) -> Path:
    """The root of a test image as a directory, made once a machine."""
    layout = Path(image(name).removeprefix("oci:").rpartition("@")[0])
    target = layout.with_name(f"{name}.root")
    if not target.exists():
        part = Path(tempfile.mkdtemp(dir=layout.parent))
        manifest = _document(layout, json.loads((layout / "index.json").read_text())["manifests"][0])
        for layer in manifest["layers"]:
            subprocess.run(["tar", "-C", str(part), "-xpzf", str(_blob(layout, layer))], check=True)
        part.chmod(0o755)
        part.rename(target)
    return target


def image_environment(name: str) -> list[str]:
    """`KEY=value` each, as the image's configuration has it."""
    layout = Path(image(name).removeprefix("oci:").rpartition("@")[0])
    manifest = _document(layout, json.loads((layout / "index.json").read_text())["manifests"][0])
    env: list[str] = _document(layout, manifest["config"])["config"]["Env"]
    return env


def _blob(layout: Path, descriptor: Mapping[str, Any]) -> Path:
    return layout / "blobs" / "sha256" / str(descriptor["digest"]).removeprefix("sha256:")


def _document(layout: Path, descriptor: Mapping[str, Any]) -> Any:
    return json.loads(_blob(layout, descriptor).read_text())


def _config(name: str, folder: Path, wanted: Wanted, told: Mapping[str, str]) -> dict[str, Any]:
    env = [*image_environment(wanted.image), "KUBERNETES_SERVICE_HOST=10.0.0.1"]
    env += [f"{key}={value}" for key, value in told.items()]
    memory = {} if wanted.memory_bytes is None else {"memory": {"limit": wanted.memory_bytes, "swap": wanted.memory_bytes}}
    grouped = {"unified": {"memory.oom.group": "1"}} if wanted.oom_group else {}
    caps = list(wanted.capabilities)
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": wanted.user[0], "gid": wanted.user[1], "additionalGids": list(wanted.groups)},
            "args": ["/sandlot/sandlotd", "pod"],
            "env": env,
            "cwd": wanted.cwd,
            "capabilities": {"bounding": caps, "effective": caps if wanted.user[0] == 0 else [], "permitted": caps},
            "noNewPrivileges": wanted.no_new_privs,
            "oomScoreAdj": wanted.oom_score_adj,
        },
        "root": {"path": "root", "readonly": wanted.read_only},
        "hostname": "pod",
        "mounts": _mounts(folder, wanted),
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "uts", "mount", "network")],
            "cgroupsPath": f"/{name}",
            "resources": {"devices": [{"allow": False, "access": "rwm"}], **memory, **grouped},
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
        },
    }


def _mounts(folder: Path, wanted: Wanted) -> list[dict[str, Any]]:
    quiet = ["nosuid", "noexec", "nodev"]
    made = [
        ("/proc", "proc", quiet),
        ("/dev", "tmpfs", ["nosuid", "strictatime", "mode=755", "size=65536k"]),
        ("/dev/pts", "devpts", ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"]),
        ("/dev/mqueue", "mqueue", quiet),
        ("/sys", "sysfs", [*quiet, "ro"]),
        ("/sys/fs/cgroup", "cgroup", [*quiet, "ro"]),
        ("/dev/shm", "tmpfs", [*quiet, "mode=1777", "size=65536k"]),
    ]
    mounts = [{"destination": at, "type": kind, "source": kind, "options": options} for at, kind, options in made]
    volumes = [Volume(folder / "delivery", "/sandlot", ("ro",)), *wanted.volumes]
    for file, text in (("/etc/hosts", "127.0.0.1 localhost\n"), ("/etc/hostname", "pod\n"), ("/etc/resolv.conf", "")):
        source = folder / "files" / Path(file).name
        source.write_text(text)
        volumes.append(Volume(source, file))
    for volume in volumes:
        options = ["rbind", "rprivate", *volume.options]
        mounts.append({"destination": volume.target, "type": "bind", "source": str(volume.source), "options": options})
    return mounts
