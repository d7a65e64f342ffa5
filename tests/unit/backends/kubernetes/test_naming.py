"""Labels as Kubernetes can bear them, and back."""

from __future__ import annotations

import re

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sandlot.backends.kubernetes import naming
from sandlot.errors import BadRequest

VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")
NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")


def test_labels_that_are_labels_stay_as_they_are() -> None:
    """No note is needed then."""
    wanted = {"run": "r-1", "team.example/owner": "a.b_c", "empty": ""}
    assert naming.labels(wanted) == (wanted, {})


@given(st.dictionaries(st.text(min_size=1, max_size=80), st.text(max_size=80), max_size=5))
def test_any_labels_come_back_and_can_be_borne(wanted: dict[str, str]) -> None:
    """Whatever a spec's labels are, the pod's are valid for Kubernetes, and a listing shows the spec's."""
    assume(not any(key.startswith(naming.PREFIX) for key in wanted))
    borne, notes = naming.labels(wanted)
    for key, value in borne.items():
        prefix, _, name = key.rpartition("/")
        assert NAME.fullmatch(name)
        assert len(name) <= 63
        assert len(prefix) <= 253
        assert VALUE.fullmatch(value)
        assert len(value) <= 63
    assert naming.exact_labels({**borne, naming.CLIENT: "c"}, notes) == wanted


def test_our_own_labels_cannot_be_taken() -> None:
    """Whoever could set them would make the reaper delete the pods of others."""
    with pytest.raises(BadRequest, match="one of Sandlot's own"):
        naming.labels({"sandlot.dev/client": "x"})


@pytest.mark.parametrize("note", ["{", "[]", '{"a": 1}'])
def test_spoilt_note_is_passed_over(note: str) -> None:
    """An annotation that somebody changed hides no sandbox from a listing."""
    assert naming.exact_labels({"a": "b"}, {naming.LABELS_NOTE: note}) == {"a": "b"}


def test_shards_divide_a_burst_evenly() -> None:
    """No collection of a client's pods is much larger than the others."""
    counts = [0] * naming.SHARDS
    for number in range(8000):
        counts[int(naming.shard(f"abcdef01-{number}"))] += 1
    assert min(counts) > 800


@pytest.mark.parametrize("text", ["", "UPPER", "-a", "a-", "a.b", "a" * 64])
def test_names_that_kubernetes_refuses_are_refused_here(text: str) -> None:
    """With a hint, before anything is sent."""
    with pytest.raises(BadRequest):
        naming.check_dns_label(text, "name")
