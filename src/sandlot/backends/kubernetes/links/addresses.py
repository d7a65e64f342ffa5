"""At which addresses of this machine pods can reach it, as the kernel would route to them. Always numbers, never names:
what a name means in a pod is the cluster's to say."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable

from sandlot.errors import BadRequest, Unsupported

MOST_ADDRESSES = 4


def advertised(given: str | None, peers: Iterable[str], port: int) -> str:
    """What goes into `SANDLOT_DIAL`: `host:port[,host:port]`, IPv6 in brackets.

    `given`: an address that the user named, `host` or `host:port` (behind a port forwarding), several by commas; None: those
    from which the kernel would send to `peers` (IP addresses of nodes, pods, or the API server), in their order.

    Raises:
        BadRequest: `given` is no IP address.
        Unsupported: none was given and none leads to this machine from elsewhere.
    """
    if given is not None:
        return ",".join(_with_port(one.strip(), port) for one in given.split(","))
    found = dict.fromkeys(address for peer in peers if (address := route_from(peer)) is not None)
    if not found:
        raise Unsupported(
            "this machine has no address that pods could dial",
            hint="name one, or use connect='dial-in' or connect='exec-bridge'",
        )
    return ",".join(_joined(address, port) for address in list(found)[:MOST_ADDRESSES])


def route_from(peer: str) -> str | None:
    """The address that the kernel would send from to this IP address; None when it does not lead off this machine.

    Connecting a datagram socket sends nothing: it only asks the routing table.
    """
    family = socket.AF_INET6 if ":" in peer else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((peer, 9))
            source = ipaddress.ip_address(sock.getsockname()[0])
    except OSError:
        return None
    if source.is_loopback or source.is_link_local or source.is_unspecified:
        return None
    return str(source)


def _with_port(text: str, port: int) -> str:
    host, own_port = text, port
    if text.startswith("[") or text.count(":") == 1:
        host, _, digits = text.rpartition(":") if not text.endswith("]") else (text, "", str(port))
        if not digits.isascii() or not digits.isdecimal() or not 1 <= int(digits) <= 65_535:
            raise BadRequest(f"{text!r} has no port that could be dialled")
        own_port = int(digits)
    try:
        address = ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        raise BadRequest(f"{host!r} is no IP address", hint="a name may mean something else in a pod") from None
    return _joined(str(address), own_port)


def _joined(address: str, port: int) -> str:
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
