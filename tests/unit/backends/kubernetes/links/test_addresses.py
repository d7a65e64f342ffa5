"""What pods are told to dial."""

from __future__ import annotations

import pytest

from sandlot.backends.kubernetes.links.addresses import advertised, route_from
from sandlot.errors import BadRequest, Unsupported


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("198.18.0.1", "198.18.0.1:4000"),
        ("198.18.0.1:99", "198.18.0.1:99"),
        ("fd00::1", "[fd00::1]:4000"),
        ("[fd00::1]", "[fd00::1]:4000"),
        ("[fd00::1]:99", "[fd00::1]:99"),
        ("198.18.0.1, fd00::1", "198.18.0.1:4000,[fd00::1]:4000"),
    ],
)
def test_a_named_address_is_taken_as_it_is(given: str, shown: str) -> None:
    """With its own port, or the listener's."""
    assert advertised(given, [], 4000) == shown


@pytest.mark.parametrize("given", ["host.example", "host.example:80", "198.18.0.1:0", "198.18.0.1:x", "198.18.0.1:70000", ""])
def test_a_name_or_a_bad_port_is_refused(given: str) -> None:
    """A name may mean something else where it is read."""
    with pytest.raises(BadRequest):
        advertised(given, [], 4000)


def test_a_loopback_peer_gives_no_address() -> None:
    """An API server on this machine says nothing of how pods reach it."""
    assert route_from("127.0.0.1") is None
    assert route_from("::1") is None
    with pytest.raises(Unsupported):
        advertised(None, ["127.0.0.1"], 4000)
