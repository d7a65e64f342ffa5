"""What a cluster takes from the operating system, and bringing what is missing."""

import os
import shutil
import subprocess
from dataclasses import dataclass

from cluster.options import Options
from cluster.say import Say


class NeedError(Exception):
    """Something is missing that cannot be installed from here."""


@dataclass(frozen=True)
class _Need:
    packages: tuple[str, ...]
    """Debian's names."""

    check: tuple[str, ...]
    """A command that succeeds when it is there."""


_NEEDS = (
    _Need(("gcc", "libc6-dev"), ("cc", "--version")),
    _Need(("pkg-config", "libseccomp-dev"), ("pkg-config", "--exists", "libseccomp")),
    _Need(("iproute2",), ("ip", "-Version")),
    _Need(("openssl",), ("openssl", "version")),
    _Need(("util-linux",), ("nsenter", "--version")),
)

_FOR_POLICIES = (_Need(("iptables",), ("iptables", "--version")), _Need(("ipset",), ("ipset", "version")))


def provide(options: Options, say: Say) -> None:
    """Install what is missing; nothing when nothing is. None of it is a service.

    Raises:
        NeedError: not root, no apt-get, or it failed.
    """
    needs = [*_NEEDS, *(_FOR_POLICIES if options.policies else ())]
    missing = [package for need in needs if not _there(need.check) for package in need.packages]
    if not missing:
        return
    names = " ".join(missing)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise NeedError(f"missing (Debian's names): {names}")
    say(f"installing {names}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for words in (["apt-get", "-q", "update"], ["apt-get", "-q", "-y", "--no-install-recommends", "install", *missing]):
        done = subprocess.run(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise NeedError(f"apt-get failed, install by hand: {names}\n{done.stdout[-2000:]}")


def _there(check: tuple[str, ...]) -> bool:
    try:
        return subprocess.run(check, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False
