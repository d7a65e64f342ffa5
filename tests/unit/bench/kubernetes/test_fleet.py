"""What the fake fleet is told of pods."""

from __future__ import annotations

import json

from sandlot.bench.kubernetes.fleet import lines


def event(kind: str, name: str, address: str = "", **env: str) -> bytes:
    container = {"name": "task", "image": "i", "env": [{"name": key, "value": value} for key, value in env.items()]}
    pod = {"metadata": {"name": name, "uid": "u"}, "spec": {"containers": [container]}, "status": {"podIP": address}}
    return json.dumps({"type": kind, "object": pod}).encode()


def test_a_pod_that_runs_is_told_with_its_address_and_secrets() -> None:
    """One line: name, address, secret, key, where to dial, where to listen; what is not set is empty."""
    came = event("ADDED", "a", "127.1.0.9", PATH="/bin", SANDLOT_ENROL="s", SANDLOT_KEY="k", SANDLOT_LISTEN="7000")
    assert lines([came]) == b"runs\ta\t127.1.0.9\ts\tk\t\t7000\n"


def test_a_pod_that_ends_is_told_and_changes_of_one_that_runs_are_not() -> None:
    """A batch is told at once, in the order in which things happened."""
    batch = [event("ADDED", "a", "127.1.0.9"), event("MODIFIED", "a", "127.1.0.9"), event("DELETED", "a", "127.1.0.9")]
    assert lines(batch) == b"runs\ta\t127.1.0.9\t\t\t\t\ngone\ta\n"
