"""Diffs as values: bounded, filterable, and the same after a way over the disk."""

from __future__ import annotations

import pytest

from sandlot import errors
from sandlot.protocol.requests import Entry
from sandlot.sandbox import Diff
from sandlot.sandbox.diffs import DiffBuilder
from sandlot.sandbox.trees import Item, Piece

MiB = 2**20


def build(*items: Item, max_bytes: int = 100 * MiB) -> Diff:
    """As if these had come from a sandbox."""
    builder = DiffBuilder(max_bytes=max_bytes)
    for item in items:
        if isinstance(item, Piece):
            builder.data(item.at, item.data)
        else:
            builder.entry(item)
    builder.finish()
    return builder.diff()


def sample() -> Diff:
    return build(
        Entry(0, b"src", "dir", mode=0o755),
        Entry(0, b"src/a.py", "file", mode=0o644, size=3),
        Piece(0, b"abc"),
        Entry(0, b"src/b.py", "hard", target=b"src/a.py"),
        Entry(0, b"src/old.py", "gone"),
        Entry(0, b"tests", "dir", opaque=True),
        Entry(0, b"tests/t.py", "file", mode=0o600, size=10),
        Piece(2, b"xy"),
    )


def test_contents_can_be_read_with_their_holes() -> None:
    """As the file would read."""
    diff = sample()
    assert diff.paths == ("src", "src/a.py", "src/b.py", "src/old.py", "tests", "tests/t.py")
    assert (diff.read("src/a.py"), diff.read("src/b.py")) == (b"abc", b"abc")
    assert diff.read("tests/t.py") == b"\0\0xy" + bytes(6)
    assert diff.data_bytes == 5
    with pytest.raises(errors.BadRequest):
        diff.read("src/old.py")


def test_items_are_what_came() -> None:
    """Applied, a diff makes what it was taken from."""
    items = list(sample().items())
    assert [item.path for item in items if isinstance(item, Entry)] == [entry.path for entry in sample().entries]
    assert [(item.at, item.data) for item in items if isinstance(item, Piece)] == [(0, b"abc"), (2, b"xy")]
    assert build(*items).digest() == sample().digest()


def test_filter_keeps_what_is_wanted_and_the_directories_above() -> None:
    """Judging applies only a task's own tree."""
    diff = sample().filter(lambda path: path.startswith("tests/"))
    assert diff.paths == ("tests", "tests/t.py")
    assert [type(item) for item in diff.items()] == [Entry, Entry, Piece]


def test_hard_link_whose_first_name_is_left_out_becomes_a_file() -> None:
    """No entry refers to what is not there."""
    diff = sample().filter(lambda path: path == "src/b.py")
    assert [(entry.path, entry.kind) for entry in diff.entries] == [(b"src", "dir"), (b"src/b.py", "file")]
    assert diff.read("src/b.py") == b"abc"
    (entry,) = [item for item in diff.items() if isinstance(item, Entry) and item.kind == "file"]
    assert (entry.path, entry.size) == (b"src/b.py", 3)


def test_large_data_goes_to_disk_and_comes_back() -> None:
    """In pieces of at most a chunk."""
    content = bytes(range(256)) * (9 * MiB // 256)
    pieces = [Piece(i, content[i : i + 250_000]) for i in range(0, len(content), 250_000)]
    diff = build(Entry(0, b"", "dir"), Entry(0, b"big", "file", size=len(content)), *pieces)
    assert diff.read("big") == content
    assert b"".join(item.data for item in diff.items() if isinstance(item, Piece)) == content
    diff.close()
    diff.close()
    with pytest.raises(errors.Closed):
        diff.read("big")


def test_more_than_permitted_is_refused() -> None:
    """A sandbox does not fill this machine's disk."""
    with pytest.raises(errors.SandboxFileError, match="max_bytes=10"):
        build(Entry(0, b"a", "file", size=11), Piece(0, b"x" * 11), max_bytes=10)


@pytest.mark.parametrize(
    "items",
    [
        [Piece(0, b"x")],
        [Entry(0, b"a", "dir"), Piece(0, b"x")],
        [Entry(0, b"a", "file", size=1), Piece(0, b"xy")],
        [Entry(0, b"a", "hard", target=b"b")],
    ],
)
def test_diffs_that_make_no_sense_are_breaches(items: list[Item]) -> None:
    """Data without a file, beyond its size, links to nothing."""
    with pytest.raises(errors.ProtocolViolation):
        build(*items)


def test_sparse_giants_are_not_read_whole() -> None:
    """A declared size costs nothing until it is asked for, and then it is refused."""
    diff = build(Entry(0, b"a", "file", size=2**50), Piece(2**49, b"x"))
    with pytest.raises(errors.BadRequest, match="too many"):
        diff.read("a")


def test_digest_tells_contents_modes_and_paths_apart_but_not_times() -> None:
    """Two rollouts that changed the same have the same digest."""
    one = build(Entry(0, b"a", "file", mode=0o644, mtime_ns=1, size=1), Piece(0, b"x"))
    same = build(Entry(0, b"a", "file", mode=0o644, mtime_ns=2, size=1), Piece(0, b"x"))
    other = build(Entry(0, b"a", "file", mode=0o755, mtime_ns=1, size=1), Piece(0, b"x"))
    assert one.digest() == same.digest()
    assert one.digest() != other.digest()
