"""What failed on one node is tried on another."""

from __future__ import annotations

from sandlot.backends.kubernetes.suspects import MOST, SUSPECT_S, Suspects, avoiding

WISHES = "preferredDuringSchedulingIgnoredDuringExecution"


def test_a_node_is_avoided_for_a_while() -> None:
    """From its last failure on, unless a sandbox starts there."""
    suspects = Suspects()
    suspects.failed("a", 0.0)
    suspects.failed("b", 1.0)
    suspects.failed("a", 2.0)
    assert suspects.names(2.0) == ("b", "a")
    assert suspects.names(1.0 + SUSPECT_S) == ("a",)
    suspects.started("a")
    assert suspects.names(3.0) == ()


def test_only_the_latest_are_avoided() -> None:
    """When every node fails, the manifest does not grow."""
    suspects = Suspects()
    for number in range(100):
        suspects.failed(f"node-{number}", 0.0)
    assert suspects.names(0.0) == tuple(f"node-{number}" for number in range(100 - MOST, 100))


def test_the_wish_stands_beside_the_caller_s_own() -> None:
    """Nothing of the caller's affinity is lost or changed."""
    own = {"weight": 1, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
    affinity = {"podAntiAffinity": {"x": 1}, "nodeAffinity": {"required": {"y": 2}, WISHES: [own]}}
    made = avoiding(affinity, ("a", "b"))
    names = [field["values"] for field in made["nodeAffinity"][WISHES][1]["preference"]["matchFields"]]
    assert (made["podAntiAffinity"], made["nodeAffinity"]["required"]) == ({"x": 1}, {"y": 2})
    assert (made["nodeAffinity"][WISHES][0], names) == (own, [["a"], ["b"]])
    assert affinity["nodeAffinity"] == {"required": {"y": 2}, WISHES: [own]}


def test_without_suspects_nothing_is_added() -> None:
    """A pod that asked for nothing gets no affinity."""
    assert avoiding({}, ()) == {}
