"""The ways to links, for faults that a link may feel: how a client of each is set up, and how its pods are cut off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final

import pytest

from cluster import Cluster
from cluster.handle import Container
from sandlot.backends.kubernetes import ClusterOptions
from sandlot.backends.kubernetes.options import Connect
from tests.cluster.faults.clients import GRACE_S, options
from tests.cluster.faults.cutting import cut_off

USUAL_AND_FULL: Final = (
    "dial-in",
    pytest.param("dial-out", marks=pytest.mark.full),
    pytest.param("exec-bridge", marks=pytest.mark.full),
)


def by(connect: Connect, cluster: Cluster, namespace: str, *, link_grace_s: float = GRACE_S) -> ClusterOptions:
    """For one client of this cluster, whose pods know this machine by the cluster's gateway."""
    made = options(namespace, connect=connect, link_grace_s=link_grace_s)
    return replace(made, advertise=cluster.gateway) if connect == "dial-out" else made


@contextmanager
def partition(connect: Connect, cluster: Cluster, containers: Sequence[Container]) -> Iterator[None]:
    """No link of theirs passes anything in this block. What goes through the API server goes through the node's agent
    from there, so that is what falls silent then: of the whole node.
    """
    with ExitStack() as stack:
        if connect == "exec-bridge":
            stack.enter_context(cluster.paused("kubelet"))
        else:
            for one in containers:
                stack.enter_context(cut_off(one))
        yield
