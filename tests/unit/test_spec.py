"""What is wanted of a sandbox: checked when it is made, equal when it means the same, and cheap to look up."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.errors import BadRequest
from sandlot.spec import Spec, parse_size

specs = st.builds(
    Spec,
    image=st.sampled_from(["host", "dir:/a", "oci:/b@c"]),
    layers=st.lists(st.sampled_from(["/x", "/y"]), max_size=2),
    cpu=st.none() | st.integers(1, 4) | st.floats(0.5, 4),
    memory=st.none() | st.sampled_from(["64MiB", 64 * 2**20, "1GB"]),
    env=st.dictionaries(st.sampled_from("AB"), st.text(st.characters(exclude_characters="\0"), max_size=3)),
    user=st.none() | st.sampled_from([1000, "1000", "nobody"]),
    read_only=st.booleans(),
)


@given(specs, specs)
def test_equal_specs_have_equal_hashes_and_keys(one: Spec, two: Spec) -> None:
    """Also when they were written differently: `cpu=1` and `cpu=1.0`, `64MiB` and its number."""
    if one == two:
        assert (hash(one), one.key) == (hash(two), two.key)
    assert replace(one) == one


@given(specs)
def test_survives_pickling_and_copying(spec: Spec) -> None:
    """A trainer's worker gets the spec that was sent."""
    for again in (pickle.loads(pickle.dumps(spec)), copy.deepcopy(spec), copy.copy(spec)):
        assert (again, hash(again), repr(again)) == (spec, hash(spec), repr(spec))


def test_says_only_what_differs_from_the_defaults() -> None:
    """And can be pasted back."""
    assert repr(Spec()) == "Spec()"
    spec = Spec(image="dir:/a", memory="64MiB", env={"A": "1"})
    assert repr(spec) == "Spec(image='dir:/a', memory=67108864, env={'A': '1'})"
    assert eval(repr(spec)) == spec


def test_nothing_of_it_changes_afterwards() -> None:
    """Neither its fields nor the mappings that it was made from."""
    env = {"A": "1"}
    spec = Spec(env=env)
    env["A"] = "2"
    assert spec.env == {"A": "1"}
    with pytest.raises(FrozenInstanceError):
        spec.image = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        spec.env["A"] = "3"  # type: ignore[index]


@pytest.mark.parametrize(
    "wrong",
    [
        {"image": ""},
        {"cpu": 0.0},
        {"cpu": -1},
        {"cpu": float("nan")},
        {"memory": "1MiB"},
        {"memory": "much"},
        {"memory": -1},
        {"disk": "1 elephant"},
        {"pids": 0},
        {"env": {"A=B": "1"}},
        {"env": {"": "1"}},
        {"env": {"A": "1\0"}},
        {"layers": "/one/directory"},
    ],
)
def test_what_can_never_work_is_refused(wrong: dict[str, object]) -> None:
    """When it is made, not when it is used."""
    with pytest.raises(BadRequest):
        Spec(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "size"),
    [(0, 0), (17, 17), ("17", 17), ("1KiB", 1024), ("1 kB", 1000), ("1.5MiB", 1_572_864), (" 2GB ", 2 * 10**9)],
)
def test_sizes_are_read_as_people_write_them(text: int | str, size: int) -> None:
    """Powers of two with an i, of ten without."""
    assert parse_size(text) == size
