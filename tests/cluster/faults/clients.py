"""How the clients of these tests use their cluster: short leases, so that what they promise can be waited for."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO

from cluster import Cluster
from sandlot.backends.kubernetes import ClusterOptions
from sandlot.backends.kubernetes.options import Connect

LEASE_S = 9.0
RENEW_S = 2.0
GRACE_S = 20.0
"""How long a link may be cut."""
PROMISE_S = LEASE_S + 30.0
"""After this, nothing may be left of a client that died."""
PATIENCE_S = 300.0
"""For what nothing is promised of, so that every wait has an end."""


def options(namespace: str, *, connect: Connect = "dial-in", link_grace_s: float = GRACE_S) -> ClusterOptions:
    """For one client. Dial-in, since a pod's address can be cut off from here without touching anybody else."""
    return ClusterOptions(
        namespace=namespace,
        connect=connect,
        delivery="image",
        lease_s=LEASE_S,
        renew_s=RENEW_S,
        link_grace_s=link_grace_s,
    )


@dataclass(frozen=True, slots=True)
class Client:
    """A client in a process of its own."""

    process: subprocess.Popen[str]
    id: str

    def usable(self, count: int) -> list[str]:
        """Wait until it has so many usable sandboxes, counting from the last call."""
        return [_line(self.process.stdout) for _ in range(count)]


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    line = stream.readline()
    assert line, "the client ended"
    return line.strip()


@contextmanager
def client(
    cluster: Cluster, namespace: str, image: str, count: int, *, connect: Connect = "dial-in", off_s: float = 0.0
) -> Iterator[Client]:
    """Start one, for which this machine's clock is off by so much; it is killed at the end."""
    words = [cluster.name, namespace, image, str(count), connect, str(off_s)]
    command = [sys.executable, "-m", "tests.cluster.faults.client", *words]
    environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield Client(process, _line(process.stdout))
        finally:
            process.kill()
