"""The table of rights, and what people are told of it."""

from __future__ import annotations

from pathlib import Path

from sandlot.backends.kubernetes.rights import RIGHTS, granted

DOCUMENT = Path(__file__).parents[4] / "docs" / "kubernetes.md"


def test_the_document_says_what_each_right_is_for() -> None:
    """Every resource and verb of the table stands in its section, in the order of the table."""
    section = DOCUMENT.read_text().partition("## What each right is for")[2].partition("\n## ")[0]
    for right in RIGHTS:
        if right.purpose in ("sandboxes", "exec-bridge"):
            assert f"{right.resource}: {', '.join(right.verbs)}" in section, right
        elif right.purpose == "looking" and "webhook" not in right.resource:
            assert right.resource in section, right


def test_rights_on_one_kind_of_object_are_put_together() -> None:
    """One rule a resource, each verb once."""
    rights = granted(("sandboxes",), "namespace")
    assert len({(right.group, right.resource) for right in rights}) == len(rights)
    assert all(len(set(right.verbs)) == len(right.verbs) for right in rights)


def test_every_right_has_a_reason() -> None:
    """A right nobody can explain is one too many."""
    assert all(right.why and right.verbs for right in RIGHTS)
