"""The id modes of the local backend that this run can have, and how a host is put into each of them."""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandlot.daemon_binary import find_daemon

TEST_USER: Final = "sandlot-test"  # a system account without a password, made for these tests and left in place
SUBIDS: Final = "{name}:700000000:65536\n"
LIMITS: Final = ("memory", "pids", "cpu", "freezer")


Delegate = Callable[[pwd.struct_passwd], Iterable[Path]]


@dataclass(frozen=True, slots=True)
class Mode:
    """One id mode, as a host is started in it."""

    name: str
    launcher: tuple[str, ...]
    runtime: Path
    cache: Path
    daemon: Path
    requested: str | None = None


def as_root(folder: Path) -> Mode:
    """The user of this process, which must be root."""
    folder.mkdir(mode=0o755, exist_ok=True)
    return Mode("root", (), folder / "run", folder / "cache", find_daemon())


@contextlib.contextmanager
def as_test_user(name: str, folder: Path, delegate: Delegate | None = None) -> Iterator[Mode]:
    """An ordinary user with (`subuid`) or without (`single`) a range of subordinate ids, in the cgroups that `delegate` gives.

    None: a group on each hierarchy, as a service manager delegates them.
    """
    user = _test_user()
    for path in (folder, folder / "run", folder / "cache"):
        path.mkdir(mode=0o755, exist_ok=True)
        os.chown(path, user.pw_uid, user.pw_gid)
    daemon = folder / "sandlotd"
    shutil.copy(find_daemon(), daemon)
    daemon.chmod(0o755)
    groups = list((delegate or _delegated_cgroups)(user))
    enter = "".join(f"echo $$ > {group}/cgroup.procs; " for group in groups)
    drop = f"exec setpriv --reuid {user.pw_uid} --regid {user.pw_gid} --clear-groups --inh-caps=-all --bounding-set=-all"
    if name == "subuid":
        drop = drop.replace(" --bounding-set=-all", "")  # newuidmap needs what its file capabilities or setuid bit give
    launcher = ("/bin/sh", "-c", f'{enter}{drop} "$@"', "launcher")
    requested = {"subuid": "range-rootless", "single": "single"}[name]
    try:
        with _subordinate_ids(user.pw_name) if name == "subuid" else contextlib.nullcontext():
            yield Mode(name, launcher, folder / "run", folder / "cache", daemon, requested)
    finally:
        for group in groups:
            _remove(group)


def _remove(group: Path, seconds: float = 10) -> None:
    """Remove a group as soon as the last process has left it; one that is still used after `seconds` is a leak."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _test_user() -> pwd.struct_passwd:
    try:
        return pwd.getpwnam(TEST_USER)
    except KeyError:
        subprocess.run(["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", TEST_USER], check=True)
        return pwd.getpwnam(TEST_USER)


@contextlib.contextmanager
def _subordinate_ids(name: str) -> Iterator[None]:
    """Entries in /etc/subuid and /etc/subgid for as long as the tests run."""
    tables = [Path("/etc/subuid"), Path("/etc/subgid")]
    for table in tables:
        table.write_text(_without(table, name) + SUBIDS.format(name=name))
    try:
        yield
    finally:
        for table in tables:
            table.write_text(_without(table, name))


def _without(table: Path, name: str) -> str:
    """What the table says of everybody else."""
    lines = table.read_text().splitlines(keepends=True) if table.exists() else []
    return "".join(line for line in lines if not line.startswith(f"{name}:"))


def _delegated_cgroups(user: pwd.struct_passwd) -> Iterator[Path]:
    """A group on each hierarchy, below this process's, that belongs to the user: what a service manager delegates."""
    mark = secrets.token_hex(4)  # several of these live at once in one process
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        mount = Path("/sys/fs/cgroup", controllers.split(",")[0] if number != "0" else "unified")
        if not mount.is_dir() or (number != "0" and controllers.split(",")[0] not in LIMITS):
            continue
        group = Path(f"{mount}{path}", f"sandlot-test-{os.getpid()}-{mark}")
        group.mkdir()
        for entry in (group, *(group / name for name in ("cgroup.procs", "tasks", "cgroup.subtree_control", "cgroup.threads"))):
            if entry.exists():
                os.chown(entry, user.pw_uid, user.pw_gid)
        yield group
