"""Pods and leases put together."""

from __future__ import annotations

import pytest

from sandlot.backends.kubernetes.objects import Lease, LeaseSpec, Metadata, Pod, PodSpec, PodStatus
from sandlot.backends.kubernetes.survey import arrange

NOW = 1_000_000_000.0  # 2001-09-09T01:46:40Z


def lease(name: str, kind: str, client: str, renewed: str) -> Lease:
    labels = {"sandlot.dev/kind": kind, "sandlot.dev/client": client}
    return Lease(Metadata(name=name, labels=labels), LeaseSpec("host/7", 60, renewed))


def pod(name: str, client: str, owner: str = "attached") -> Pod:
    labels = {"sandlot.dev/kind": "sandbox", "sandlot.dev/client": client, "sandlot.dev/owner": owner, "team": "rl"}
    meta = Metadata(name=name, labels=labels, creation_timestamp="2001-09-09T01:40:00Z")
    return Pod(meta, PodSpec("n1"), PodStatus("Running"))


@pytest.mark.parametrize(
    ("leases", "fate"),
    [
        ([lease("sandlot-client-c", "client", "c", "2001-09-09T01:46:00.5Z")], "stays"),
        ([lease("sandlot-client-c", "client", "c", "2001-09-09T01:45:00Z")], "expired"),
        ([lease("sandlot-client-d", "client", "d", "2001-09-09T01:46:00Z")], "orphan"),
        ([], "orphan"),
    ],
)
def test_what_becomes_of_a_sandbox_follows_its_clients_lease(leases: list[Lease], fate: str) -> None:
    """By the server's time that is given."""
    seen = arrange("rl", [pod("s", "c")], leases, NOW)
    assert [one.fate for one in seen.sandboxes] == [fate]
    assert seen.sandboxes[0].info.lease_left_s is None


def test_a_leased_sandbox_has_a_lease_of_its_own() -> None:
    """It stays though its client is gone, and goes when its own lease has run out."""
    leases = [
        lease("sandlot-lease-a", "sandbox-lease", "c", "2001-09-09T01:46:10Z"),
        lease("sandlot-lease-b", "sandbox-lease", "c", "2001-09-09T01:00:00Z"),
    ]
    seen = arrange("rl", [pod("a", "c", "leased"), pod("b", "c", "leased")], leases, NOW)
    assert [(one.info.name, one.fate) for one in seen.sandboxes] == [("a", "stays"), ("b", "expired")]
    assert seen.sandboxes[0].info.lease_left_s == 30.0


def test_clients_are_told_with_what_they_have() -> None:
    """Alive or not; leases of sandboxes are no clients."""
    leases = [
        lease("sandlot-client-c", "client", "c", "2001-09-09T01:46:30Z"),
        lease("sandlot-client-d", "client", "d", "2001-09-09T01:00:00Z"),
        lease("sandlot-lease-x", "sandbox-lease", "c", "2001-09-09T01:46:30Z"),
    ]
    seen = arrange("rl", [pod("a", "c"), pod("b", "c")], leases, NOW)
    assert [(one.id, one.alive, one.sandboxes, one.holder) for one in seen.clients] == [
        ("c", True, 2, "host/7"), ("d", False, 0, "host/7"),
    ]  # fmt: skip


def test_labels_of_ours_are_not_the_callers() -> None:
    """A listing shows what the spec said."""
    assert arrange("rl", [pod("a", "c")], [], NOW).sandboxes[0].info.labels == {"team": "rl"}
