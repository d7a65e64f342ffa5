"""A small virtual machine of another kernel with cgroup v2, which sees this machine's file system and runs one command in it.

The kernel is Debian's cloud kernel, the emulator is QEMU without hardware help (TCG), the root is this machine's root, shared
read-only by virtiofs under a temporary overlay. A disk of its own (ext4) is on /mnt. No network; nothing outlives the call.
"""

from __future__ import annotations

import fcntl
import gzip
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

KERNEL_PACKAGE = "linux-image-cloud-amd64"
MODULES = (
    "drivers/virtio/virtio",
    "drivers/virtio/virtio_ring",
    "drivers/virtio/virtio_pci_modern_dev",
    "drivers/virtio/virtio_pci_legacy_dev",
    "drivers/virtio/virtio_pci",
    "drivers/block/virtio_blk",
    "fs/fuse/fuse",
    "fs/fuse/virtiofs",
    "fs/overlayfs/overlay",
    "lib/crc16",
    "lib/libcrc32c",
    "crypto/crc32c_generic",
    "fs/mbcache",
    "fs/jbd2/jbd2",
    "fs/ext4/ext4",
)
VIRTIOFSD = "/usr/lib/qemu/virtiofsd"  # where Debian's qemu-system-common puts it

INIT = """#!/bin/busybox sh
export PATH=/bin
/bin/busybox --install -s /bin
mkdir -p /proc /sys /dev /lower /upper /newroot
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for pass in 1 2 3; do for m in /mod/*.ko; do insmod $m 2>/dev/null; done; done
mount -t virtiofs -o ro root /lower && mount -t tmpfs -o size=512m up /upper && mkdir /upper/u /upper/w
mount -t overlay -o lowerdir=/lower,upperdir=/upper/u,workdir=/upper/w root /newroot
mount -t proc proc /newroot/proc; mount -t sysfs sys /newroot/sys; mount -t devtmpfs dev /newroot/dev
mkdir -p /newroot/dev/shm /newroot/dev/pts
mount -t tmpfs shm /newroot/dev/shm; mount -t devpts devpts /newroot/dev/pts; mount -t tmpfs -o mode=755 run /newroot/run
mount -t ext4 /dev/vda /newroot/mnt
mount -t cgroup2 cgroup2 /newroot/sys/fs/cgroup
ip link set lo up
exec switch_root /newroot /bin/sh /mnt/start
"""


@dataclass(frozen=True, slots=True)
class Finished:
    """How the guest's command ended; `code` None when it never said (a crash or the time limit)."""

    code: int | None
    output: str


class Missing(Exception):
    """A part of the virtual machine is not installed; the text says which package has it."""


def run(command: str, environment: Mapping[str, str], *, seconds: float = 300) -> Finished:
    """Boot, run `command` with /bin/sh as root, power off. Takes about six seconds on top of the command."""
    kernel, initrd = _boot_files()
    with tempfile.TemporaryDirectory(prefix="guest.") as scratch:
        folder = Path(scratch)
        disk = _disk(folder, command, environment)
        with _shared_root(folder) as socket:
            console = _boot(kernel, initrd, disk, socket, seconds)
    output, marker, rest = console.partition("GUEST-ENDED ")
    _, started, output = output.partition("GUEST-BEGINS\n")
    code = rest.split()[0] if marker and started and rest.split() else ""
    return Finished(int(code) if code.isdigit() else None, output if started else console)


def tests_cache() -> Path:
    """Where tests keep what takes long to make, between runs."""
    return Path(os.environ.get("SANDLOT_TEST_CACHE") or Path.home() / ".cache" / "sandlot-tests")


def _disk(folder: Path, command: str, environment: Mapping[str, str]) -> Path:
    content = folder / "disk"
    content.mkdir()
    lines = ["#!/bin/sh", "stty -onlcr -echo 2>/dev/null", "echo GUEST-BEGINS"]
    lines += [f"export {name}='{value}'" for name, value in environment.items()]
    lines += [f"({command})", "echo GUEST-ENDED $?", "sync", "echo o > /proc/sysrq-trigger", "sleep 60"]
    (content / "start").write_text("\n".join(lines) + "\n")
    disk = folder / "disk.img"
    subprocess.run(["mke2fs", "-q", "-q", "-t", "ext4", "-d", str(content), str(disk), "2G"], check=True)
    return disk


@contextmanager
def _shared_root(folder: Path) -> Iterator[Path]:
    socket = folder / "root.sock"
    command = [VIRTIOFSD, f"--socket-path={socket}", "-o", "source=/", "-o", "cache=auto", "-o", "sandbox=chroot"]
    with subprocess.Popen([*command, "-o", "no_posix_lock"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            deadline = time.monotonic() + 20
            while not socket.exists():
                if server.poll() is not None or time.monotonic() > deadline:
                    raise Missing("virtiofsd did not start: it needs root and a /dev that it may use")
                time.sleep(0.05)
            yield socket
        finally:
            server.kill()


def _boot(kernel: Path, initrd: Path, disk: Path, socket: Path, seconds: float) -> str:
    command = [
        "qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "1536", "-smp", "2",
        "-nographic", "-no-reboot", "-nic", "none",
        "-object", "memory-backend-memfd,id=mem,size=1536M,share=on", "-numa", "node,memdev=mem",
        "-kernel", str(kernel), "-initrd", str(initrd), "-append", "console=ttyS0 panic=-1 quiet",
        "-drive", f"file={disk},format=raw,if=virtio",
        "-chardev", f"socket,id=root,path={socket}", "-device", "vhost-user-fs-pci,chardev=root,tag=root",
    ]  # fmt: skip
    try:
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=seconds, check=False)
        console = ended.stdout
    except subprocess.TimeoutExpired as late:
        console = late.stdout or b""
    return console.decode("utf-8", "replace").replace("\r\n", "\n")


def _boot_files() -> tuple[Path, Path]:
    """Kernel and initial file system, made once and kept."""
    for program, package in (
        ("qemu-system-x86_64", "qemu-system-x86"),
        ("busybox", "busybox-static"),
        ("mke2fs", "e2fsprogs"),
        (VIRTIOFSD, "qemu-system-common"),
    ):
        if shutil.which(program) is None:
            raise Missing(f"{program} is missing: install Debian's {package}")
    folder = tests_cache() / "guest-2"
    folder.mkdir(parents=True, exist_ok=True)
    kernel, initrd = folder / "vmlinuz", folder / "initrd.gz"
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not initrd.exists():
            _make_boot_files(folder, kernel, initrd)
    return kernel, initrd


def _make_boot_files(folder: Path, kernel: Path, initrd: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        unpacked = Path(scratch) / "kernel"
        depends = subprocess.run(["apt-cache", "depends", KERNEL_PACKAGE], check=True, capture_output=True, text=True).stdout
        package = next(line.split()[-1] for line in depends.splitlines() if "Depends:" in line)
        subprocess.run(["apt-get", "download", "-qq", package], cwd=scratch, check=True, stderr=subprocess.DEVNULL)
        deb = next(Path(scratch).glob("*.deb"))
        subprocess.run(["dpkg", "-x", str(deb), str(unpacked)], check=True)
        tree = Path(scratch) / "initrd"
        (tree / "bin").mkdir(parents=True)
        (tree / "mod").mkdir()
        shutil.copy(shutil.which("busybox") or "busybox", tree / "bin" / "busybox")
        for number, module in enumerate(MODULES):
            for found in unpacked.glob(f"lib/modules/*/kernel/{module}.ko"):
                shutil.copy(found, tree / "mod" / f"{number:02}-{found.name}")
        (tree / "init").write_text(INIT)
        (tree / "init").chmod(0o755)
        names = "\n".join(str(path.relative_to(tree)) for path in sorted(tree.rglob("*"))).encode()
        packed = subprocess.run(["busybox", "cpio", "-o", "-H", "newc"], cwd=tree, input=names, capture_output=True, check=True)
        shutil.copy(next(unpacked.glob("boot/vmlinuz-*")), kernel)
        part = initrd.with_suffix(".part")
        part.write_bytes(gzip.compress(packed.stdout, 1))
        part.rename(initrd)
