"""The pod bridge of a cluster, and which ports are free."""

import json
import socket
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from cluster.layout import Layout


def exists(device: str) -> bool:
    return Path("/sys/class/net", device).exists()


def ports_free(ports: Iterable[int]) -> bool:
    """Whether nothing listens on any of these ports of the loopback."""
    for port in ports:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                return False
    return True


def make_bridge(layout: Layout, *, filtered: bool) -> None:
    """Make it; `filtered` sends what pods say to each other through the firewall's rules.

    Raises subprocess.CalledProcessError when the kernel refuses.
    """
    _ip("link", "add", "name", layout.bridge, "address", layout.bridge_mac, "type", "bridge")
    _ip("address", "add", f"{layout.gateway}/{layout.pods.prefixlen}", "dev", layout.bridge)
    if filtered:
        _ip("link", "set", layout.bridge, "type", "bridge", "nf_call_iptables", "1")
    _ip("link", "set", layout.bridge, "up")


def remove_bridge(layout: Layout) -> None:
    """Remove this cluster's bridge and what hangs on it; another cluster's of the same name stays.

    The ends of pods go by themselves, too, but seconds after a pod's last process when the machine is busy.
    """
    if not is_ours(layout):
        return
    for device in [*ports_of(layout), layout.bridge]:
        with suppress(subprocess.CalledProcessError):  # gone in this moment
            _ip("link", "delete", device)


def is_ours(layout: Layout) -> bool:
    """Whether the bridge exists and carries this cluster's mark."""
    try:
        return Path("/sys/class/net", layout.bridge, "address").read_text().strip() == layout.bridge_mac
    except FileNotFoundError:
        return False


def ports_of(layout: Layout) -> list[str]:
    """The pods' ends that hang on the bridge."""
    try:
        return sorted(path.name for path in Path("/sys/class/net", layout.bridge, "brif").iterdir())
    except FileNotFoundError:
        return []


def addresses(device: str) -> list[str]:
    """IPv4 addresses of a device."""
    found = json.loads(_ip("-json", "-4", "address", "show", "dev", device))
    return [address["local"] for one in found for address in one.get("addr_info", [])]


def _ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout
