"""Trees on this machine: read as they are, written so that nothing from a sandbox gets anywhere else."""

from __future__ import annotations

import contextlib
import os
import stat
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandlot import errors
from sandlot.protocol.requests import Entry
from sandlot.sandbox.trees import Item, Piece, TreeReader, TreeWriter

GiB = 2**30


def write(target: Path, *items: Item, max_bytes: int = GiB) -> None:
    """As if these had come from a sandbox."""
    writer = TreeWriter(target, max_bytes=max_bytes)
    try:
        for item in items:
            if isinstance(item, Piece):
                writer.data(item.at, item.data)
            else:
                writer.entry(item)
        writer.finish()
    finally:
        writer.close()


def describe(root: Path) -> dict[str, tuple[object, ...]]:
    """Everything that is promised to be kept."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted([root, *root.rglob("*")]):
        info, name = path.lstat(), str(path.relative_to(root))
        if stat.S_ISLNK(info.st_mode):
            found[name] = ("link", os.readlink(path))
        elif stat.S_ISDIR(info.st_mode):
            found[name] = ("dir", stat.S_IMODE(info.st_mode), info.st_mtime_ns)
        else:
            found[name] = ("file", stat.S_IMODE(info.st_mode), path.read_bytes(), info.st_mtime_ns, info.st_nlink)
    return found


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with one of each kind."""
    root = tmp_path / "tree"
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "f").write_bytes(b"data")
    (root / "run").write_bytes(b"#!/bin/sh\n")
    (root / "run").chmod(0o755)
    (root / "zero").touch(0o600)
    (root / "sub" / "up").symlink_to("../f")
    (root / "out").symlink_to("/etc/passwd")
    (root / "dangling").symlink_to("nothing")
    os.link(root / "f", root / "sub" / "hard")
    with (root / "sparse").open("wb") as file:
        file.truncate(50 * 2**20)
        file.seek(20 * 2**20)
        file.write(b"middle")
    (root / os.fsdecode(b"odd\xff\n")).write_bytes(b"x" * 600_000)
    (root / "sub" / "empty").chmod(0o500)
    (root / "sub").chmod(0o2755)
    os.utime(root / "f", ns=(1, 1_600_000_000_123_456_789))
    os.utime(root / "sub" / "empty", ns=(1, 5_000_000_000))
    return root


def test_what_is_read_and_written_is_the_same_tree(tree: Path, tmp_path: Path) -> None:
    """Kinds, modes, times, links, hard links, holes, empty things, odd names."""
    write(tmp_path / "copy", *TreeReader(tree).items())
    assert describe(tmp_path / "copy") == describe(tree)
    assert (tmp_path / "copy" / "sparse").stat().st_blocks * 512 < 2**20


def test_holes_are_not_sent(tree: Path) -> None:
    """A sparse file costs what is in it."""
    sent = sum(len(item.data) for item in TreeReader(tree / "sparse").items() if isinstance(item, Piece))
    assert sent < 2**20


def test_single_file_and_link_as_the_root(tree: Path, tmp_path: Path) -> None:
    """A file's path is a file on both sides; a link given as the source means what it points to."""
    write(tmp_path / "x" / "y", *TreeReader(tree / "run").items())
    assert (tmp_path / "x" / "y").read_bytes() == b"#!/bin/sh\n"
    assert stat.S_IMODE((tmp_path / "x" / "y").stat().st_mode) == 0o755
    write(tmp_path / "z", *TreeReader(tree / "sub" / "up").items())
    assert (tmp_path / "z").read_bytes() == b"data"


def test_special_files_are_named_and_left_out(tmp_path: Path) -> None:
    """A fifo does not hold the reader."""
    root = tmp_path / "tree"
    root.mkdir()
    os.mkfifo(root / "pipe")
    reader = TreeReader(root)
    assert [type(item) for item in reader.items()] == [Entry]
    assert reader.skipped == [b"pipe"]


def test_other_content_stays_and_files_are_replaced_whole(tmp_path: Path) -> None:
    """A reader of the old file keeps the old file."""
    target = tmp_path / "t"
    target.mkdir()
    (target / "mine").write_bytes(b"mine")
    (target / "f").write_bytes(b"old content")
    with (target / "f").open("rb") as reader:
        write(target, Entry(0, b"", "dir"), Entry(0, b"f", "file", size=3), Piece(0, b"new"))
        assert reader.read() == b"old content"
    assert sorted(os.listdir(target)) == ["f", "mine"]
    assert (target / "f").read_bytes() == b"new"


def test_setuid_and_setgid_bits_of_files_are_dropped(tmp_path: Path) -> None:
    """A file from a sandbox must not run with the rights of whoever downloaded it."""
    write(tmp_path / "t", Entry(0, b"", "dir"), Entry(0, b"f", "file", mode=0o6755, size=0))
    assert stat.S_IMODE((tmp_path / "t" / "f").stat().st_mode) == 0o755


ROOT = Entry(0, b"", "dir")


@pytest.mark.parametrize(
    "items",
    [
        [ROOT, Entry(0, b"../escaped", "file", size=0)],
        [ROOT, Entry(0, b"/escaped", "file", size=0)],
        [ROOT, Entry(0, b"a/../../escaped", "dir")],
        [ROOT, Entry(0, b"..", "dir")],
        [ROOT, Entry(0, b"a", "link", target=b"../outside"), Entry(0, b"a/escaped", "file", size=0)],
        [ROOT, Entry(0, b"a", "link", target=b".."), Entry(0, b"a/x/escaped", "dir")],
        [ROOT, Entry(0, b"a", "hard", target=b"../outside/secret")],
        [ROOT, Entry(0, b"a", "link", target=b"../outside/secret"), Entry(0, b"b", "hard", target=b"a")],
        [ROOT, Entry(0, b"a", "whiteout")],
        [ROOT, Entry(0, b"a", "gone")],
        [Entry(0, b"a", "file", size=0)],
        [ROOT, ROOT],
        [ROOT, Piece(0, b"x")],
        [ROOT, Entry(0, b"a", "file", size=3), Piece(0, b"four")],
        [ROOT, Entry(0, b"a", "file", size=3), Piece(3, b"x")],
        [ROOT, Entry(0, b"a", "link")],
        [ROOT, Entry(0, b"a\0b", "dir")],
    ],
    ids=lambda items: " ".join(str(getattr(item, "path", "data")) for item in items),
)
def test_nothing_leads_out_of_the_target(tmp_path: Path, items: list[Item]) -> None:
    """Refused with a typed error or an OSError; outside everything is as it was, inside no temporary file is left."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    before = describe(outside)
    with pytest.raises((errors.ProtocolViolation, OSError)):
        write(tmp_path / "t", *items)
    assert describe(outside) == before
    assert sorted(os.listdir(tmp_path)) in (["outside"], ["outside", "t"])
    if (tmp_path / "t").exists():
        assert [name for name in os.listdir(tmp_path / "t") if name.startswith(".sandlot")] == []


def test_links_that_stand_in_the_target_are_replaced_not_followed(tmp_path: Path) -> None:
    """A directory of the download takes the place of a link of ours; what the link meant is untouched."""
    outside, target = tmp_path / "outside", tmp_path / "t"
    outside.mkdir()
    target.mkdir()
    (target / "d").symlink_to(outside)
    (target / "f").symlink_to(outside / "f")
    write(
        target, ROOT, Entry(0, b"d", "dir", mode=0o755), Entry(0, b"d/x", "file", size=1), Piece(0, b"x"),
        Entry(0, b"f", "file", size=1), Piece(0, b"y"),
    )  # fmt: skip
    assert os.listdir(outside) == []
    assert (target / "d" / "x").read_bytes() == b"x"
    assert (target / "f").read_bytes() == b"y"
    assert not (target / "f").is_symlink()


def test_more_data_than_permitted_is_refused(tmp_path: Path) -> None:
    """With EFBIG, and the file that was too much is not there."""
    with pytest.raises(OSError, match="max_bytes=10") as big:
        write(tmp_path / "t", ROOT, Entry(0, b"a", "file", size=99), Piece(0, b"x" * 11), max_bytes=10)
    assert big.value.errno == 27
    assert os.listdir(tmp_path / "t") == []


def test_transfer_that_begins_again_writes_the_second_version(tmp_path: Path) -> None:
    """After a lost link the same target is filled once more."""
    writer = TreeWriter(tmp_path / "t", max_bytes=10)
    for content in (b"old", b"new"):
        writer.entry(ROOT)
        writer.entry(Entry(0, b"f", "file", size=3))
        writer.data(0, content)
        if content == b"old":
            writer.restart()
    writer.finish()
    assert (tmp_path / "t" / "f").read_bytes() == b"new"
    assert os.listdir(tmp_path / "t") == ["f"]


def test_closing_releases_every_descriptor(tmp_path: Path, tree: Path) -> None:
    """Finished, failed or given up halfway."""
    before = len(os.listdir("/proc/self/fd"))
    write(tmp_path / "a", *TreeReader(tree).items())
    for count in range(1, 12):
        writer = TreeWriter(tmp_path / f"b{count}", max_bytes=GiB)
        for item, _ in zip(TreeReader(tree).items(), range(count), strict=False):
            writer.data(item.at, item.data) if isinstance(item, Piece) else writer.entry(item)
        writer.close()
    assert len(os.listdir("/proc/self/fd")) == before


NAMES = st.sampled_from([b"a", b"b", b"a/b", b"a/b/c", b"../x", b"..", b"/x", b"", b"a/..", b"."])
TARGETS = st.none() | st.sampled_from([b"a", b"..", b"../outside", b"/", b"a/b", b"../outside/secret"])
KINDS = st.sampled_from(["file", "dir", "link", "hard", "whiteout", "gone"])
ENTRIES = st.builds(
    lambda path, kind, target, size: Entry(0, path, kind, mode=0o777, size=size, target=target),
    NAMES, KINDS, TARGETS, st.sampled_from([None, 0, 3, 2**20]),
)  # fmt: skip
PIECES = st.builds(Piece, st.none() | st.sampled_from([0, 2, 2**40]), st.sampled_from([b"", b"abc"]))


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items=st.lists(ENTRIES | PIECES, max_size=12))
def test_no_sequence_whatever_touches_what_is_outside(tmp_path_factory: pytest.TempPathFactory, items: list[Item]) -> None:
    """Any mixture of entries, in or out of order."""
    base = tmp_path_factory.mktemp("fuzz")
    outside = base / "outside"
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    before = describe(outside)
    writer = TreeWriter(base / "t", max_bytes=1000)
    with contextlib.suppress(errors.ProtocolViolation, OSError):
        for item in [ROOT, *items]:
            if isinstance(item, Piece):
                writer.data(item.at, item.data)
            else:
                writer.entry(item)
        writer.finish()
    writer.close()
    assert describe(outside) == before
    assert sorted(os.listdir(base)) == ["outside", "t"]
