"""What the text of an image reference is taken for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sandlot.errors import ImageInvalid, ImageNotFound
from sandlot.images.reference import parse


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    folder = tmp_path / "layout"
    folder.mkdir()
    (folder / "oci-layout").write_text("{}")
    return folder


def test_host_is_this_machine() -> None:
    """The word alone; a file of that name is written ./host."""
    assert parse("host").kind == "host"


def test_a_scheme_says_what_it_is(layout: Path, tmp_path: Path) -> None:
    """dir, oci, oci-archive, with and without a name within."""
    archive = tmp_path / "a.tar"
    archive.touch()
    assert parse(f"dir:{tmp_path}").kind == "dir"
    assert parse(f"oci:{layout}").ref == ""
    assert (parse(f"oci:{layout}@v1").path, parse(f"oci:{layout}@v1").ref) == (layout, "v1")
    assert (parse(f"oci-archive:{archive}@x").kind, parse(f"oci-archive:{archive}@x").ref) == ("oci-archive", "x")


def test_a_bare_path_is_taken_for_what_is_there(layout: Path, tmp_path: Path) -> None:
    """A folder with a layout, another folder, a file."""
    archive = tmp_path / "a.tar"
    archive.touch()
    assert parse(str(layout)).kind == "oci"
    assert parse(f"{layout}@v1").ref == "v1"
    assert parse(str(tmp_path)).kind == "dir"
    assert parse(str(archive)).kind == "oci-archive"


def test_a_relative_path_is_made_absolute_at_once(layout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may change its directory before the image is read."""
    monkeypatch.chdir(layout.parent)
    assert parse("oci:layout").path == layout
    assert parse("layout").kind == "oci"


def test_an_at_sign_in_a_path_that_exists_belongs_to_the_path(tmp_path: Path) -> None:
    """Only what is not there as a whole is split."""
    folder = tmp_path / "a@b"
    folder.mkdir()
    assert (parse(str(folder)).path, parse(str(folder)).ref) == (folder, "")


@pytest.mark.parametrize(
    "text", ["dir:/no/such", "oci:/no/such@x", "oci-archive:/no/such", "/no/such", "ubuntu:22.04", "dir:", "a\0b"]
)
def test_nothing_there_is_not_found_and_says_the_name(text: str) -> None:
    """The caller's fault, with a hint at the forms there are."""
    with pytest.raises(ImageNotFound) as caught:
        parse(text)
    assert repr(text) in str(caught.value)
    assert "oci-archive:PATH" in caught.value.hint


def test_something_else_there_is_invalid(tmp_path: Path, layout: Path) -> None:
    """A file where a folder should be, a folder where a file should be, a fifo."""
    file, fifo = tmp_path / "file", tmp_path / "fifo"
    file.touch()
    os.mkfifo(fifo)
    for text in (f"dir:{file}", f"oci:{file}", f"oci-archive:{layout}", str(fifo), f"oci-archive:{fifo}"):
        with pytest.raises(ImageInvalid, match="image"):
            parse(text)


def test_a_directory_has_no_names_within(tmp_path: Path) -> None:
    """`dir:PATH@x` is a path of its own; a bare one that is no layout is told so."""
    with pytest.raises(ImageNotFound):
        parse(f"dir:{tmp_path}@x")
    with pytest.raises(ImageNotFound, match="which has no @x"):
        parse(f"{tmp_path}@x")
