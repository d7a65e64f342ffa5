"""What the members of a layer become, and what is refused."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from sandlot.backends.local.images.layers import LayerReader
from sandlot.images.tarstream import Data, Kind, Malformed, Member
from sandlot.protocol.requests import Entry


def reader(lower: dict[bytes, int] | None = None, limit: int = 100) -> LayerReader:
    return LayerReader(parent_mode=(lower or {}).get, limit_inodes=limit)


def entries(members: Iterable[Member | Data], layer: LayerReader | None = None) -> list[Entry | Data]:
    return list((layer or reader()).entries(iter(members)))


def kinds(found: Iterable[Entry | Data]) -> list[tuple[bytes, str]]:
    return [(item.path, item.kind) for item in found if isinstance(item, Entry)]


def test_members_become_entries_with_owner_mode_and_time() -> None:
    """The names are cleaned: ./, doubled slashes, trailing slashes."""
    found = entries([
        Member(b"./", "dir", mode=0o755), Member(b"./a//b/", "dir", mode=0o1777, uid=5, gid=6, mtime_ns=9),
        Member(b"a/b/f", "file", mode=0o4755, size=3), Data(0, b"abc"), Member(b"a/l", "link", target=b"/etc/../x"),
        Member(b"a/h", "hard", target=b"./a/b/f"),
    ])  # fmt: skip
    assert kinds(found) == [
        (b"", "dir"),
        (b"a", "dir"),
        (b"a/b", "dir"),
        (b"a/b/f", "file"),
        (b"a/l", "link"),
        (b"a/h", "hard"),
    ]
    assert found[2] == Entry(id=0, path=b"a/b", kind="dir", mode=0o1777, uid=5, gid=6, mtime_ns=9)
    assert found[4] == Data(0, b"abc")
    assert isinstance(found[5], Entry)
    assert isinstance(found[6], Entry)
    assert (found[5].target, found[6].target) == (b"/etc/../x", b"a/b/f")


def test_markers_of_removal_are_understood() -> None:
    """A hidden name, and a directory that hides all that lies below."""
    found = entries(
        [Member(b"d", "dir"), Member(b"d/.wh.gone", "file"), Member(b"d/.wh..wh..opq", "file"), Member(b".wh.top", "file")]
    )
    assert kinds(found) == [(b"d", "dir"), (b"d/gone", "whiteout"), (b"d", "dir"), (b"top", "whiteout")]
    assert isinstance(found[2], Entry)
    assert found[2].opaque
    with pytest.raises(Malformed, match="names nothing"):
        entries([Member(b".wh.", "file")])
    with pytest.raises(Malformed, match="names nothing"):
        entries([Member(b".wh...", "file")])


def test_parents_come_first_and_take_their_mode_from_below() -> None:
    """A layer may use directories that it does not name: /tmp must not lose its sticky bit by that."""
    layer = reader({b"tmp": 0o1777})
    found = entries([Member(b"tmp/x/y", "file")], layer)
    assert [(item.path, item.mode) for item in found if isinstance(item, Entry)][:2] == [(b"tmp", 0o1777), (b"tmp/x", 0o755)]
    assert layer.leans_on_lower
    complete = reader()
    entries([Member(b"a", "dir"), Member(b"a/b", "file")], complete)
    assert not complete.leans_on_lower


def test_device_files_are_refused_but_below_dev() -> None:
    """A sandbox has its own /dev; fifos are left out."""
    layer = reader()
    assert kinds(entries([Member(b"dev/null", "char", device=(1, 3)), Member(b"run/f", "fifo")], layer)) == []
    assert layer.skipped == 2
    for kind in ("char", "block"):
        with pytest.raises(Malformed, match="device file"):
            entries([Member(b"etc/disk", kind, device=(8, 0))])


@pytest.mark.parametrize(
    "path", [b"/etc/passwd", b"../x", b"a/../../x", b"a/..", b"..", b"a\0b", b"x" * 256, b"a/" * 2000 + b"toolong" * 20]
)
def test_names_that_leave_the_image_or_cannot_be_are_refused(path: bytes) -> None:
    """For members and for the targets of hard links alike."""
    with pytest.raises(Malformed):
        entries([Member(path, "file")])
    with pytest.raises(Malformed):
        entries([Member(b"h", "hard", target=path)])


@pytest.mark.parametrize(("kind", "target"), [("link", b"/tmp"), ("file", b""), ("hard", b"a")])
def test_names_below_what_is_no_directory_are_refused(kind: Kind, target: bytes) -> None:
    """Neither followed nor put in its place; a directory that was named anew in between is fine."""
    members = [Member(b"a", "file"), Member(b"l", kind, target=target), Member(b"l/deep/f", "file")]
    with pytest.raises(Malformed, match="no directory"):
        entries(members)
    members.insert(2, Member(b"l", "dir"))
    assert kinds(entries(members))[-1] == (b"l/deep/f", "file")


def test_owners_that_no_system_has_are_refused() -> None:
    """Ids are 32 bits and the last one means "none"."""
    for uid in (2**32 - 1, 2**40):
        with pytest.raises(Malformed, match="no system has"):
            entries([Member(b"f", "file", uid=uid)])


def test_the_number_of_files_is_bounded() -> None:
    """Directories made on the way count."""
    with pytest.raises(Malformed, match="more than 10 files"):
        entries([Member(b"/".join([b"d"] * 11), "file")], reader(limit=10))


def test_data_of_members_that_are_left_out_is_left_out() -> None:
    """Only a file's data goes on."""
    found = entries(
        [
            Member(b"a", "file", size=1),
            Data(0, b"a"),
            Member(b"x.fifo", "fifo"),
            Data(0, b"?"),
            Member(b".wh.b", "file"),
            Data(0, b"?"),
        ]
    )
    assert [item for item in found if isinstance(item, Data)] == [Data(0, b"a")]


def test_a_deep_name_costs_no_recursion() -> None:
    """As deep as a path can be, with no directory of it named before."""
    deep = b"d/" * 2000 + b"f"
    found = entries([Member(deep, "file")], reader(limit=5000))
    assert len(found) == 2001
    assert kinds(found)[:2] == [(b"d", "dir"), (b"d/d", "dir")]
    assert kinds(found)[-1] == (deep, "file")
