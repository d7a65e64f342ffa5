"""Blobs of an image are verified while they are read, and no amount of damage or size gets past that."""

from __future__ import annotations

import gzip
import os
import tracemalloc
from pathlib import Path

import pytest

from sandlot.images.blobs import Archive, Blobs, Folder, read_document, read_file, read_layer
from sandlot.images.oci import MAX_DOCUMENT_BYTES, Descriptor
from sandlot.images.tarstream import Data, Malformed, Member
from tests.unit.images.layouts import PACK, Layout, archive, digest, tar

LAYER = tar(("a", b"1" * 100_000), ("b", b""))
LIMIT = 1_000_000


def contents(blobs: Blobs, packed: bytes, plain: bytes, limit: int = LIMIT) -> dict[bytes, int]:
    """Name → bytes of data of each member."""
    found: dict[bytes, int] = {}
    name = b""
    for item in read_layer(blobs, Descriptor(digest(packed), len(packed)), digest(plain), limit_bytes=limit):
        if isinstance(item, Member):
            name = item.path
            found[name] = 0
        elif isinstance(item, Data):
            found[name] += len(item.data)
    return found


@pytest.mark.parametrize("pack", list(PACK))
def test_a_layer_reads_the_same_however_it_is_packed(tmp_path: Path, pack: str) -> None:
    """Plain, gzip and zstd; told by its bytes, not by its media type."""
    packed = PACK[pack](LAYER)
    layout = Layout(tmp_path)
    layout.blob(packed)
    assert contents(Folder(tmp_path), packed, LAYER) == {b"a": 100_000, b"b": 0}


def test_a_layer_of_several_gzip_members_is_one_layer(tmp_path: Path) -> None:
    """Parallel compressors write many members, some pad the end with zeros."""
    packed = gzip.compress(LAYER[:5000]) + gzip.compress(LAYER[5000:]) + b"\0" * 100
    Layout(tmp_path).blob(packed)
    assert contents(Folder(tmp_path), packed, LAYER) == {b"a": 100_000, b"b": 0}


def test_an_archive_reads_as_its_folder_does(tmp_path: Path) -> None:
    """Names with and without ./ are the same file."""
    layout = Layout(tmp_path / "folder")
    layout.image([LAYER])
    folder = layout.write()
    packed = archive(folder, tmp_path / "image.tar")
    assert read_file(Archive(packed), "index.json") == read_file(Folder(folder), "index.json")
    assert contents(Archive(packed), gzip.compress(LAYER, 1, mtime=0), LAYER) == {b"a": 100_000, b"b": 0}


@pytest.mark.parametrize("pack", list(PACK))
@pytest.mark.parametrize("where", [5, 0.5, -3])
def test_one_changed_byte_is_noticed(tmp_path: Path, pack: str, where: float) -> None:
    """At the start, in the middle, near the end of the packed layer."""
    packed = PACK[pack](LAYER)
    described = Layout(tmp_path).blob(packed)
    at = int(len(packed) * where) if 0 < where < 1 else int(where)
    damaged = bytearray(packed)
    damaged[at] ^= 0x10
    (tmp_path / "blobs/sha256" / described["digest"][7:]).write_bytes(damaged)
    with pytest.raises(Malformed):
        contents(Folder(tmp_path), packed, LAYER)


@pytest.mark.parametrize("pack", list(PACK))
@pytest.mark.parametrize("part", [0.0, 0.1, 0.9])
def test_a_cut_layer_is_noticed(tmp_path: Path, pack: str, part: float) -> None:
    """An interrupted download."""
    packed = PACK[pack](LAYER)
    described = Layout(tmp_path).blob(packed)
    (tmp_path / "blobs/sha256" / described["digest"][7:]).write_bytes(packed[: int(len(packed) * part)])
    with pytest.raises(Malformed):
        contents(Folder(tmp_path), packed, LAYER)


def test_a_layer_that_is_not_what_the_config_names_is_refused(tmp_path: Path) -> None:
    """The packed bytes are right, the plain ones are those of another layer."""
    packed = gzip.compress(LAYER)
    Layout(tmp_path).blob(packed)
    with pytest.raises(Malformed, match="decompressed, is damaged"):
        contents(Folder(tmp_path), packed, LAYER + b"x")


@pytest.mark.parametrize("pack", ["gzip", "zstd"])
def test_a_bomb_stops_at_the_limit_in_little_memory(tmp_path: Path, pack: str) -> None:
    """64 MiB of zeros in a few KiB: refused after the limit, and never in memory at once."""
    bomb = tar(("zeros", b"\0" * 2**26))
    packed = PACK[pack](bomb)
    Layout(tmp_path).blob(packed)
    tracemalloc.start()
    try:
        with pytest.raises(Malformed, match="more than 4194304 bytes"):
            contents(Folder(tmp_path), packed, bomb, limit=2**22)
        assert tracemalloc.get_traced_memory()[1] < 8 * 2**20
    finally:
        tracemalloc.stop()


def test_documents_are_bounded_and_verified(tmp_path: Path) -> None:
    """Too long, changed, missing, and names that are no digest."""
    layout = Layout(tmp_path)
    good = layout.blob(b"{}")
    long = layout.blob(b" " * (MAX_DOCUMENT_BYTES + 1))
    assert read_document(Folder(tmp_path), Descriptor(good["digest"])) == b"{}"
    with pytest.raises(Malformed, match="more than"):
        read_document(Folder(tmp_path), Descriptor(long["digest"]))
    (tmp_path / "blobs/sha256" / good["digest"][7:]).write_bytes(b"[]")
    with pytest.raises(Malformed, match="is damaged"):
        read_document(Folder(tmp_path), Descriptor(good["digest"]))
    with pytest.raises(Malformed, match="is missing"):
        read_document(Folder(tmp_path), Descriptor(digest(b"other")))
    for name in (
        "../../etc/passwd",
        "sha256:../../../../etc/passwd",
        "md5:00",
        "sha256:" + "A" * 64,
        "sha256:" + "0" * 64 + "\n",
    ):
        with pytest.raises(Malformed, match="is not a digest"):
            read_document(Folder(tmp_path), Descriptor(name))


def test_a_fifo_in_the_place_of_a_blob_does_not_hang(tmp_path: Path) -> None:
    """Only regular files are read."""
    os.mkfifo(tmp_path / "index.json")
    with pytest.raises(Malformed, match="not a regular file"):
        read_file(Folder(tmp_path), "index.json")
    (tmp_path / "oci-layout").mkdir()
    with pytest.raises(Malformed, match="oci-layout"):
        read_file(Folder(tmp_path), "oci-layout")


def test_a_compressed_archive_says_what_to_do(tmp_path: Path) -> None:
    """Blobs in it could not be found without unpacking it all."""
    path = tmp_path / "image.tar.gz"
    path.write_bytes(gzip.compress(b"x"))
    with pytest.raises(Malformed, match="gunzip"):
        Archive(path)
