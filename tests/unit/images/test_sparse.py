"""Sparse files in archives, as GNU tar itself writes them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sandlot.images.tarstream import Data, Malformed, Member, read_tar
from tests.unit.images.test_tarstream import read_all

MIB = 2**20


@pytest.fixture
def holey(tmp_path: Path) -> Path:
    """4 MiB in length, three islands of data."""
    path = tmp_path / "holey"
    with open(path, "wb") as file:
        file.truncate(4 * MIB)
        for at in (0, MIB, 3 * MIB + 4096):
            os.pwrite(file.fileno(), b"island" * 100, at)
    return path


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar")
@pytest.mark.parametrize("form", [["--format=gnu"], ["--format=posix"], ["--format=posix", "--sparse-version=0.1"]])
def test_holes_stay_holes(holey: Path, form: list[str]) -> None:
    """Content, length and the places of the data are exact, and the holes are not data."""
    command = ["tar", "-C", str(holey.parent), "--sparse", *form, "-cf", "-", holey.name]
    raw = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout

    ((member, content),) = read_all(raw)

    assert (member.path, member.size) == (b"holey", 4 * MIB)
    assert content == holey.read_bytes()
    items = list(read_tar(iter_read(raw)))
    assert sum(len(item.data) for item in items if isinstance(item, Data)) < MIB


def test_many_islands_need_continuation_blocks(tmp_path: Path) -> None:
    """More extents than one header holds."""
    path = tmp_path / "many"
    with open(path, "wb") as file:
        file.truncate(8 * MIB)
        for number in range(64):
            os.pwrite(file.fileno(), bytes([number + 1]), number * 128 * 1024)
    for form in (["--format=gnu"], ["--format=posix"]):
        command = ["tar", "-C", str(tmp_path), "--sparse", *form, "-cf", "-", "many"]
        raw = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
        ((_, content),) = read_all(raw)
        assert content == path.read_bytes()


@pytest.mark.parametrize("numbers", ["2\n0\n10\n5\n10\n", "1\n4000\n200\n", "1\n0\n", "999999999\n", "x\n", "1\n-1\n1\n"])
def test_maps_that_lie_are_refused(numbers: str) -> None:
    """Overlapping, beyond the end, cut short, no numbers."""
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("sparse")
        info.pax_headers = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": "s",
            "GNU.sparse.realsize": "4096",
        }
        body = numbers.encode().ljust(512, b"\0") + b"d" * 20
        info.size = len(body)
        tar.addfile(info, io.BytesIO(body))
    with pytest.raises(Malformed):
        read_all(buffer.getvalue())


def iter_read(raw: bytes):  # type: ignore[no-untyped-def]
    import io

    return io.BytesIO(raw).read


def test_an_empty_sparse_file_is_only_length(tmp_path: Path) -> None:
    """Nothing but a hole."""
    path = tmp_path / "hole"
    path.touch()
    os.truncate(path, MIB)
    command = ["tar", "-C", str(tmp_path), "--sparse", "-cf", "-", "hole"]
    raw = subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout
    items = list(read_tar(iter_read(raw)))
    assert isinstance(items[0], Member)
    assert (items[0].size, items[1:]) == (MIB, [])
