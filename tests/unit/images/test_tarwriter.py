"""Directories as archives, read back by the reader of the product."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from sandlot.images.tarstream import Data, Malformed, Member, read_tar
from sandlot.images.tarwriter import owner_of_user, write_tar

KEEP = owner_of_user(0, 0)


def packed(top: Path) -> bytes:
    out = io.BytesIO()
    write_tar(top, out, KEEP)
    return out.getvalue()


def members(top: Path) -> dict[str, Member]:
    found = read_tar(io.BytesIO(packed(top)).read)
    return {os.fsdecode(item.path): item for item in found if isinstance(item, Member)}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "top"
    (top / "d").mkdir(parents=True)
    (top / "d" / "file").write_bytes(b"content")
    (top / "d" / "file").chmod(0o4751)
    (top / "link").symlink_to("d/file")
    os.link(top / "d" / "file", top / "same")
    os.mkfifo(top / "fifo")
    return top


def test_every_kind_of_file_comes_back(tree: Path) -> None:
    """With mode and link; the second name of a file is a link to the first."""
    found = members(tree)
    assert {name: member.kind for name, member in found.items()} == {
        "./": "dir", "d/": "dir", "d/file": "file", "fifo": "fifo", "link": "link", "same": "hard",
    }  # fmt: skip
    assert (found["d/file"].mode, found["link"].target, found["same"].target) == (0o4751, b"d/file", b"d/file")


def test_the_same_files_are_the_same_bytes(tree: Path, tmp_path: Path) -> None:
    """Whatever order the directory gives them in, and whoever packs them."""
    twin = tmp_path / "twin"
    (twin / "d").mkdir(parents=True)
    os.mkfifo(twin / "fifo")
    (twin / "same").write_bytes(b"content")
    (twin / "same").chmod(0o4751)
    os.link(twin / "same", twin / "d" / "file")
    (twin / "link").symlink_to("d/file")
    for top in (tree, twin):
        for path in [top, *top.rglob("*")]:
            os.utime(path, (1_000_000, 1_000_000.5), follow_symlinks=False)
    assert packed(tree) == packed(twin)


def test_names_that_are_no_text_and_long_ones_stay(tmp_path: Path) -> None:
    """Bytes are bytes."""
    odd = os.fsencode(tmp_path) + b"/odd-\xff-" + b"x" * 200
    with open(odd, "wb") as file:
        file.write(b"1")
    assert {os.fsencode(name) for name in members(tmp_path)} == {b"./", os.path.basename(odd)}


@pytest.mark.may_lack
def test_a_file_keeps_its_capabilities(tmp_path: Path) -> None:
    """And user attributes; the archive says them as pax records that every runtime reads."""
    (tmp_path / "f").write_bytes(b"")
    try:
        os.setxattr(tmp_path / "f", "user.mark", b"\x01\xfe\x00")
    except OSError:
        pytest.skip("this file system has no attributes for users")
    assert b"SCHILY.xattr.user.mark=\x01\xfe\x00\n" in packed(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make marks of an overlay")
def test_marks_of_removal_become_those_of_images(tmp_path: Path) -> None:
    """A device 0/0 hides one file; an attribute on a directory hides all below; the attributes themselves stay behind."""
    os.mknod(tmp_path / "gone", 0o020000, os.makedev(0, 0))
    (tmp_path / "d").mkdir()
    os.mknod(tmp_path / "d" / "gone", 0o020000, os.makedev(0, 0))
    (tmp_path / "d" / "new").write_bytes(b"")
    os.setxattr(tmp_path / "d", "trusted.overlay.opaque", b"y")
    found = list(members(tmp_path))
    assert found == ["./", "d/", "d/.wh..wh..opq", "d/.wh.gone", "d/new", ".wh.gone"]
    assert b"overlay" not in packed(tmp_path)


@pytest.mark.may_lack
def test_marks_without_privileges_are_understood(tmp_path: Path) -> None:
    """An overlay mounted by a user keeps them in attributes of its own."""
    (tmp_path / "d").mkdir()
    (tmp_path / "gone").write_bytes(b"")
    try:
        os.setxattr(tmp_path / "d", "user.overlay.opaque", b"y")
        os.setxattr(tmp_path / "gone", "user.overlay.whiteout", b"y")
    except OSError:
        pytest.skip("this file system has no attributes for users")
    assert list(members(tmp_path)) == ["./", "d/", "d/.wh..wh..opq", ".wh.gone"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make device files")
def test_device_files_and_sockets_stay_behind(tmp_path: Path) -> None:
    """A root file system made by debootstrap has some; runtimes make their own."""
    os.mknod(tmp_path / "null", 0o020666, os.makedev(1, 3))
    assert list(members(tmp_path)) == ["./"]


def test_a_name_that_would_be_a_mark_is_refused(tmp_path: Path) -> None:
    """It cannot be said in an image, and dropping it in silence would be worse."""
    (tmp_path / ".wh.x").write_bytes(b"")
    with pytest.raises(Malformed, match=r"\.wh\.x"):
        packed(tmp_path)


def test_whose_files_they_are_in_the_image() -> None:
    """Root keeps all; a user's own are root's, the ranges that belong to it count from 1, others stay."""
    rule = owner_of_user(1000, 100, ranges=((100_000, 65_536),))
    assert [rule(0, 0), rule(1000, 100), rule(100_000, 100_041), rule(7, 100)] == [(0, 0), (0, 0), (1, 42), (7, 0)]
    assert KEEP(1000, 0) == (1000, 0)


def test_data_of_a_large_file_is_whole(tmp_path: Path) -> None:
    """Read in pieces."""
    content = os.urandom(3_000_001)
    (tmp_path / "f").write_bytes(content)
    data = b"".join(item.data for item in read_tar(io.BytesIO(packed(tmp_path)).read) if isinstance(item, Data))
    assert data == content
