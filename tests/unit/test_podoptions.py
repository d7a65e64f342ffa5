"""What only pods have of a spec: frozen, comparable, checked."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from sandlot import BadRequest, PodOptions, Spec

FULL: dict[str, Any] = {
    "requests": {"cpu": "1", "nvidia.com/gpu": 1},
    "node_selector": {"pool": "rl"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {"required": [{"key": ["a", "b"]}]}},
    "pull_secrets": ["one"],
    "extra": {"containers": [{"name": "task", "env": [{"name": "A", "value": "b"}]}], "dnsPolicy": None},
}


def test_equal_options_are_one_warm_sandbox() -> None:
    """Equality, hash and the spec's key follow the values, whatever kind of sequence or mapping they came in."""
    other = {**FULL, "tolerations": ({"operator": "Exists", "key": "gpu"},), "pull_secrets": ("one",)}
    one, two = Spec(pod=PodOptions(**FULL)), Spec(pod=PodOptions(**other))
    assert (one == two, hash(one) == hash(two), one.key == two.key) == (True, True, True)
    assert Spec().key != one.key != Spec(pod=PodOptions(**{**FULL, "runtime_class": "gvisor"})).key


def test_options_can_be_pickled() -> None:
    """Specs travel between processes."""
    spec = Spec(pod=PodOptions(**FULL))
    assert pickle.loads(pickle.dumps(spec)) == spec


def test_what_was_given_can_be_changed_afterwards() -> None:
    """The options keep their own copy, all the way down, and nobody can change that."""
    extra: dict[str, Any] = {"volumes": [{"name": "v", "emptyDir": {}}]}
    options = PodOptions(extra=extra)
    extra["volumes"][0]["name"] = "other"
    assert options == PodOptions(extra={"volumes": [{"name": "v", "emptyDir": {}}]})
    with pytest.raises(TypeError):
        options.extra["volumes"] = ()  # type: ignore[index]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"pull_policy": "Sometimes"}, "pull_policy"),
        ({"security": "none"}, "security"),
        ({"extra": {"a": {"b": object()}}}, r"extra\.a\.b"),
        ({"extra": {"a": [b"x"]}}, r"extra\.a\[0\]"),
        ({"affinity": {1: "x"}}, "affinity"),
    ],
)
def test_impossible_options_are_refused_with_their_place(wrong: dict[str, Any], said: str) -> None:
    """Before anything is created."""
    with pytest.raises(BadRequest, match=said):
        PodOptions(**wrong)


def test_repr_shows_what_differs() -> None:
    """And nothing else."""
    assert repr(PodOptions(runtime_class="gvisor")) == "PodOptions(runtime_class='gvisor')"
