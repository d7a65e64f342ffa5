"""Processes that outlive the one who started them: known by pid and start time, signalled through a pidfd.

A pid alone is no name: it may be another process's by the time it is read back. The kernel's start time beside it names
one process until the next boot, and a pidfd keeps that name valid between looking and signalling.
"""

import os
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_POLL_S = 0.02


@dataclass(frozen=True)
class Identity:
    """One process of this boot."""

    pid: int
    started: int
    """Clock ticks after boot, as `/proc/PID/stat` says it."""

    def alive(self) -> bool:
        """Whether it still runs; one that has ended and waits to be reaped does not."""
        found = _look(self.pid)
        return found is not None and found[1] == self.started and found[0] not in "ZX"

    def send(self, signum: signal.Signals) -> bool:
        """Signal it; False when it is gone."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive():
                return False
            signal.pidfd_send_signal(handle, signum)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True


def _look(pid: int) -> tuple[str, int] | None:
    """State letter and start time."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = text.rpartition(")")[2].split()  # the name before it may hold anything, parentheses too
    return fields[0], int(fields[19])


def identify(pid: int) -> Identity | None:
    """The process that has this pid now, or None."""
    found = _look(pid)
    return None if found is None or found[0] in "ZX" else Identity(pid, found[1])


def spawn(argv: Sequence[str], env: Mapping[str, str], *, log: Path, member_of: Sequence[Path]) -> Identity:
    """Start a process in a session of its own, its output appended to `log`, inside the cgroups of `member_of`.

    It enters the cgroups before it becomes `argv`, so nothing it starts can be outside them.

    Raises:
        RuntimeError: it ended at once; `log` says why.
    """
    enter = 'while [ "$1" != -- ]; do echo $$ >"$1/cgroup.procs" || exit 125; shift; done; shift; exec "$@"'
    whole = ["/bin/sh", "-c", enter, "sh", *map(str, member_of), "--", *argv]
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
        (os.POSIX_SPAWN_DUP2, 1, 2),
    ]
    usual = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE]
    pid = os.posix_spawn(whole[0], whole, dict(env), file_actions=actions, setsid=True, setsigmask=(), setsigdef=usual)
    identity = identify(pid)
    if identity is None:
        reap(pid)
        raise RuntimeError(f"{argv[0]} ended at once")
    return identity


def reap(pid: int) -> None:
    """Take the exit of a child; nothing when it is none of ours or still runs."""
    with suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)


def wait_gone(processes: Iterable[Identity], timeout_s: float) -> list[Identity]:
    """Wait until all have ended; those that have not after `timeout_s`."""
    left = list(processes)
    end = time.monotonic() + timeout_s
    while True:
        for one in left:
            reap(one.pid)
        left = [one for one in left if one.alive()]
        if not left or time.monotonic() >= end:
            return left
        time.sleep(_POLL_S)


def stop(processes: Sequence[Identity], *, grace_s: float, first: signal.Signals = signal.SIGTERM) -> list[Identity]:
    """Signal `first`, then SIGKILL after `grace_s`; those that survived even that (in an uninterruptible sleep)."""
    for one in processes:
        one.send(first)
        one.send(signal.SIGCONT)  # one that is paused takes the signal only when it goes on
    left = wait_gone(processes, grace_s)
    for one in left:
        one.send(signal.SIGKILL)
    return wait_gone(left, 10.0)
