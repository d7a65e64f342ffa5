"""References to registries."""

from __future__ import annotations

import pytest

from sandlot.backends.kubernetes.registry import parse_repository, parse_target
from sandlot.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "origin", "path"),
    [
        ("127.0.0.1:5000", "http://127.0.0.1:5000", ""),
        ("localhost/a", "http://localhost", "a"),
        ("[::1]:5000/a/b", "http://[::1]:5000", "a/b"),
        ("registry.example.org/team/x", "https://registry.example.org", "team/x"),
        ("http://registry.example.org:80/x", "http://registry.example.org:80", "x"),
        ("https://127.0.0.1:5000/x/", "https://127.0.0.1:5000", "x"),
    ],
)
def test_loopback_is_plain_and_all_else_is_not(text: str, origin: str, path: str) -> None:
    """Unless the caller says so."""
    repository = parse_repository(text)
    assert (repository.origin, repository.path) == (origin, path)


@pytest.mark.parametrize(
    "text", ["", "debian", "ftp://a.b/c", "a.b/UPPER", "a.b/x..y", "a.b//c", "user@a.b/c", "a.b:99999999/c"]
)
def test_what_names_no_registry_is_refused(text: str) -> None:
    """A bare word is an image of some default registry, which is nobody's to push to."""
    with pytest.raises(BadRequest):
        parse_repository(text)


def test_a_port_is_no_tag() -> None:
    """Only what follows the last colon behind the last slash is."""
    assert parse_target("127.0.0.1:5000/a/b").text == "127.0.0.1:5000/a/b:latest"
    assert parse_target("127.0.0.1:5000/a:v1").tag == "v1"


@pytest.mark.parametrize("text", ["127.0.0.1:5000", "a.b/c@sha256:" + "0" * 64, "a.b/c:-x", "a.b/c:" + "x" * 129])
def test_targets_need_a_repository_and_a_possible_tag(text: str) -> None:
    """The caller's fault, said before anything is sent."""
    with pytest.raises(BadRequest):
        parse_target(text)


def test_below_goes_deeper_in_the_same_registry() -> None:
    """Also from the top."""
    assert parse_repository("127.0.0.1:5000").below("x/y").text == "127.0.0.1:5000/x/y"
    assert parse_repository("a.b/c").below("d").text == "a.b/c/d"
