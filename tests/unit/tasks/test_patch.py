"""Unified diffs: parsing, exact application, halves, making."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.tasks.patch import PatchError, apply_file, changed_lines, diff_trees, first_half, parse_patch, touched

ONE = """\
diff --git a/pkg/a.py b/pkg/a.py
index 1..2 100644
--- a/pkg/a.py
+++ b/pkg/a.py
@@ -1,3 +1,3 @@
 one
-two
+TWO
 three
@@ -8,2 +8,3 @@ def f():
 eight
+eight and a half
 nine
"""

BASE = b"".join(f"{word}\n".encode() for word in ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"])


def test_hunks_are_applied_where_they_say() -> None:
    """Every hunk lands at its own line."""
    (patch,) = parse_patch(ONE)
    assert apply_file(patch, BASE) == BASE.replace(b"two", b"TWO").replace(b"eight\n", b"eight\neight and a half\n")


def test_hunks_follow_lines_that_moved() -> None:
    """Lines added above only shift the place; the context must still match exactly."""
    (patch,) = parse_patch(ONE)
    moved = b"zero\nzero\n" + BASE
    assert apply_file(patch, moved) == b"zero\nzero\n" + (apply_file(patch, BASE) or b"")


def test_hunk_that_does_not_fit_names_file_and_hunk() -> None:
    """Nothing is guessed when the context is not there."""
    (patch,) = parse_patch(ONE)
    with pytest.raises(PatchError, match="hunk 2 does not fit") as caught:
        apply_file(patch, BASE.replace(b"nine", b"NINE"))
    assert caught.value.path == "pkg/a.py"


def test_files_are_made_removed_and_renamed() -> None:
    """The three header forms that git writes for them are understood."""
    text = (
        "diff --git a/new b/new\nnew file mode 100755\n--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+x\n"
        "diff --git a/old b/old\ndeleted file mode 100644\n--- a/old\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "diff --git a/from b/to\nsimilarity index 100%\nrename from from\nrename to to\n"
    )
    new, old, moved = parse_patch(text)
    assert (new.old, new.new, new.mode, apply_file(new, None)) == (None, "new", 0o755, b"x\n")
    assert (old.old, old.new, apply_file(old, b"x\n")) == ("old", None, None)
    assert (moved.old, moved.new, apply_file(moved, b"same")) == ("from", "to", b"same")


def test_missing_line_end_is_kept_missing() -> None:
    """The mark for a missing line end belongs to the line before it, on either side."""
    text = "--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n\\ No newline at end of file\n"
    (patch,) = parse_patch(text)
    assert apply_file(patch, b"a") == b"b"


@pytest.mark.parametrize("path", ["/etc/passwd", "a/../../x", "../x"])
def test_paths_outside_the_tree_are_refused(path: str) -> None:
    """A patch is input from outside: it must not reach beyond the tree."""
    with pytest.raises(PatchError, match="outside the tree"):
        parse_patch(f"--- {path}\n+++ {path}\n@@ -1 +1 @@\n-a\n+b\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("just words\n", "no unified diff"),
        ("@@ -1 +1 @@\n-a\n+b\n", "before any file name"),
        ("--- a/f\n+++ b/f\n@@ -1,5 +1,5 @@\n a\n", "middle of a hunk"),
        ("--- a/f\n+++ b/f\n@@ -1,2 +1,2 @@\n a\n?b\n", "neither context nor change"),
        ("diff --git a/f b/f\nGIT binary patch\nliteral 3\n", "binary"),
    ],
)
def test_what_is_no_patch_is_refused(text: str, message: str) -> None:
    """Each way to be wrong has its own words."""
    with pytest.raises(PatchError, match=message):
        parse_patch(text)


def test_half_is_the_first_half_of_all_hunks() -> None:
    """Two hunks give one, three files of one hunk give one, a single hunk gives none."""
    (patch,) = parse_patch(ONE)
    (half,) = first_half((patch,))
    assert half.hunks == patch.hunks[:1]
    single = parse_patch("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\n")
    assert first_half(single) == ()
    assert first_half(single * 3) == single


def test_removal_cut_in_half_keeps_the_file() -> None:
    """A file whose removal is only half done is not removed."""
    text = "--- a/f\n+++ /dev/null\n@@ -1 +0,0 @@\n-a\n@@ -5 +0,0 @@\n-b\n"
    (half,) = first_half(parse_patch(text))
    assert (half.new, len(half.hunks)) == ("f", 1)


def test_touched_and_changed_lines_count_both_sides() -> None:
    """Renames touch both names; context lines are no change."""
    patches = parse_patch(ONE + "diff --git a/from b/to\nrename from from\nrename to to\n")
    assert touched(patches) == {"pkg/a.py", "from", "to"}
    assert changed_lines(patches) == 3


def test_binary_files_cannot_be_diffed() -> None:
    """Making a patch of what it cannot carry is an error that names the file."""
    with pytest.raises(PatchError, match="not UTF-8"):
        diff_trees({"x": b"\xff\xfe"}, {})


_files = st.dictionaries(
    st.sampled_from(["a", "d/b", "d/e/c"]), st.text("ab\n\x0c", max_size=40).map(lambda text: text.encode()), max_size=3
)


@given(_files, _files)
@settings(deadline=None)
def test_a_made_patch_leads_from_one_tree_to_the_other(old: dict[str, bytes], new: dict[str, bytes]) -> None:
    """Diff, parse and apply are inverse for any text, empty files and missing line ends included."""
    tree = dict(old)
    for patch in parse_patch(diff_trees(old, new)):
        content = apply_file(patch, tree.get(patch.path))
        if content is None:
            del tree[patch.path]
        else:
            tree[patch.path] = content
    assert tree == new


def test_git_reads_what_we_make(tmp_path: Path) -> None:
    """`git apply` comes to the same files as ours does."""
    old = {"a": b"1\n2\n3\n", "gone": b"x", "same": b"s"}
    new = {"a": b"1\n2\nthree", "same": b"s", "n/new": b"n\n"}
    for name, content in old.items():
        (tmp_path / name).write_bytes(content)
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=diff_trees(old, new).encode(), check=True)
    found = {str(f.relative_to(tmp_path)): f.read_bytes() for f in tmp_path.rglob("*") if f.is_file() and ".git" not in f.parts}
    assert found == new
