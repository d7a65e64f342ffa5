"""What of an agent's change is kept, as a diff that can be applied."""

from __future__ import annotations

import stat

from sandlot.protocol.fields import EntryKind
from sandlot.protocol.requests import Entry
from sandlot.sandbox.diffs import Diff, DiffBuilder
from sandlot.tasks.change import guarded
from sandlot.tasks.protect import guard_for

GUARD = guard_for(hidden=["tests/test_a.py", "src/pkg/test_in.py"], gold=["src/pkg/core.py"], present=["src"])


def _diff(*entries: tuple[str, EntryKind] | tuple[str, EntryKind, bool]) -> Diff:
    builder = DiffBuilder(max_bytes=2**20)
    for path, kind, *opaque in entries:
        mode = 0o644 | (stat.S_IFDIR if kind == "dir" else 0)
        target = b"elsewhere" if kind == "link" else None
        builder.entry(Entry(id=1, path=path.encode(), kind=kind, mode=mode, size=1, target=target, opaque=bool(opaque)))
        if kind == "file":
            builder.data(None, b"x")
    builder.finish()
    return builder.diff()


def test_code_is_kept_and_the_rest_named_by_reason() -> None:
    """Directories come along with what is kept in them and are never named themselves."""
    changed = _diff(
        ("src", "dir"),
        ("src/pkg", "dir"),
        ("src/pkg/core.py", "file"),
        ("src/pkg/conftest.py", "file"),
        ("src/pkg/__pycache__", "dir"),
        ("src/pkg/__pycache__/a.pyc", "file"),
        ("src/pkg/__pycache__/b.pyc", "file"),
        ("tests", "dir"),
        ("tests/test_a.py", "gone"),
    )
    kept, left_out = guarded(changed, GUARD)
    assert kept.paths == ("src", "src/pkg", "src/pkg/core.py")
    assert {(one.reason, one.files) for one in left_out} == {
        ("runner configuration", 1),
        ("compiled code", 2),
        ("hidden test", 1),
    }


def test_directory_of_hidden_tests_cannot_be_replaced() -> None:
    """Neither by a link or nothing, nor by an empty directory of the same name."""
    kept, left_out = guarded(_diff(("tests", "link")), GUARD)
    assert (kept.paths, [one.reason for one in left_out]) == ((), ["directory of hidden tests"])
    kept, left_out = guarded(_diff(("src", "gone")), GUARD)
    assert (kept.paths, [one.examples for one in left_out]) == ((), [("src",)])


def test_tree_that_was_replaced_as_a_whole_leaves_the_clean_one() -> None:
    """By a link or a file in its place."""
    kept, _ = guarded(_diff(("", "link")), GUARD)
    assert kept.paths == ()


def test_replaced_directory_keeps_what_the_judge_needs() -> None:
    """An agent that made `src` anew gets its files in, and the clean tree's other files stay."""
    kept, _ = guarded(
        _diff(("src", "dir", True), ("src/pkg", "dir", True), ("src/pkg/core.py", "file"), ("docs", "dir", True)), GUARD
    )
    assert [(entry.path, entry.wire.opaque) for entry in kept.entries] == [
        (b"src", False),
        (b"src/pkg", False),
        (b"src/pkg/core.py", False),
        (b"docs", True),
    ]


def test_examples_are_few_whatever_the_agent_left() -> None:
    """A verdict stays small."""
    _, (left_out,) = guarded(_diff(*((f"a{number}.pyc", "file") for number in range(500))), GUARD)
    assert (left_out.files, len(left_out.examples)) == (500, 5)
