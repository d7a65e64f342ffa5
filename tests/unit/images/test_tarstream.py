"""The reader of tar archives, held against the standard library's writer and against hostile input."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandlot.images.tarstream import MAX_EXTENSION_BYTES, Data, Malformed, Member, read_tar

Fill = Callable[[tarfile.TarFile], None]


def archive(fill: Fill, form: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        fill(tar)
    return buffer.getvalue()


def read_all(raw: bytes) -> list[tuple[Member, bytes]]:
    """Members with their whole content, holes as zero bytes."""
    found: list[tuple[Member, bytearray]] = []
    for item in read_tar(io.BytesIO(raw).read):
        if isinstance(item, Member):
            found.append((item, bytearray(item.size if item.kind == "file" else 0)))
        else:
            found[-1][1][item.at : item.at + len(item.data)] = item.data
    return [(member, bytes(content)) for member, content in found]


def add(tar: tarfile.TarFile, name: str, data: bytes = b"", **fields: object) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    for key, value in fields.items():
        setattr(info, key, value)
    tar.addfile(info, io.BytesIO(data))


FORMS = pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])


@FORMS
def test_every_kind_of_member_comes_out_as_it_went_in(form: int) -> None:
    """Files, directories, links, hard links, fifos and devices keep name, mode, owner, target and content."""

    def fill(tar: tarfile.TarFile) -> None:
        add(tar, "d", type=tarfile.DIRTYPE, mode=0o1777, uid=7, gid=8)
        add(tar, "d/file", b"x" * 700, mode=0o640, mtime=123)
        add(tar, "d/link", type=tarfile.SYMTYPE, linkname="../else where")
        add(tar, "d/hard", type=tarfile.LNKTYPE, linkname="d/file")
        add(tar, "d/fifo", type=tarfile.FIFOTYPE)
        add(tar, "d/null", type=tarfile.CHRTYPE, devmajor=1, devminor=3)
        add(tar, "empty")

    found = read_all(archive(fill, form))

    assert [(member.path, member.kind) for member, _ in found] == [
        (b"d/", "dir"), (b"d/file", "file"), (b"d/link", "link"), (b"d/hard", "hard"),
        (b"d/fifo", "fifo"), (b"d/null", "char"), (b"empty", "file"),
    ]  # fmt: skip
    members = {member.path: member for member, _ in found}
    assert (members[b"d/"].mode, members[b"d/"].uid, members[b"d/"].gid) == (0o1777, 7, 8)
    assert (members[b"d/file"].mode, members[b"d/file"].mtime_ns) == (0o640, 123_000_000_000)
    assert members[b"d/link"].target == b"../else where"
    assert members[b"d/hard"].target == b"d/file"
    assert members[b"d/null"].device == (1, 3)
    assert dict(zip(members, (content for _, content in found), strict=True))[b"d/file"] == b"x" * 700


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_and_large_numbers_need_extensions_and_survive(form: int) -> None:
    """Names beyond 255 bytes, non-ASCII names and ids beyond seven octal digits are exact."""
    name = "ä/" + "/".join(["part" * 20] * 6)
    raw = archive(lambda tar: add(tar, name, b"1", uid=3_000_000, linkname=""), form)
    ((member, content),) = read_all(raw)
    assert (member.path, member.uid, content) == (name.encode(), 3_000_000, b"1")


def test_times_keep_their_nanoseconds() -> None:
    """pax times are decimal text; times before 1970 are negative."""
    raw = archive(lambda tar: (add(tar, "a", mtime=1.25), add(tar, "b", mtime=-1.5))[0])  # type: ignore[func-returns-value]
    assert [member.mtime_ns for member, _ in read_all(raw)] == [1_250_000_000, -1_500_000_000]


def test_an_old_directory_is_a_file_whose_name_ends_in_a_slash() -> None:
    """Archives from before ustar have no type for directories."""
    raw = archive(lambda tar: add(tar, "old"))
    block = bytearray(raw[:512])
    block[3:4] = b"/"
    block[156:157] = b"\0"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    ((member, _),) = read_all(bytes(block) + raw[512:])
    assert member.kind == "dir"


def test_data_comes_in_pieces_of_bounded_size() -> None:
    """A large file is never in memory at once."""
    raw = archive(lambda tar: add(tar, "big", b"z" * 1_000_000))
    pieces = [item for item in read_tar(io.BytesIO(raw).read) if isinstance(item, Data)]
    assert max(len(piece.data) for piece in pieces) <= 262_144
    assert sum(len(piece.data) for piece in pieces) == 1_000_000
    assert [piece.at for piece in pieces] == [0, 262_144, 524_288, 786_432]


def test_an_archive_cut_anywhere_but_at_a_member_is_said_to_be_cut() -> None:
    """No truncation goes unnoticed: what is missing is named, and nothing hangs."""
    raw = archive(lambda tar: (add(tar, "x" * 150, b"1" * 600), add(tar, "y"))[0])  # type: ignore[func-returns-value]
    ends = {0, len(read_only_first(raw))}
    for cut in range(1, 3000, 37):
        if cut % 512 == 0 or cut in ends:
            continue
        with pytest.raises(Malformed, match=r"ends|checksum"):
            read_all(raw[:cut])


def read_only_first(raw: bytes) -> bytes:
    """The bytes of the first member with its extension headers."""
    return raw[: 512 + 512 + 512 + 1024]


def test_a_huge_extension_header_is_refused_before_it_is_read() -> None:
    """A pax header may claim gigabytes: nothing of that size is asked for."""
    raw = bytearray(archive(lambda tar: add(tar, "n" * 200, b"")))
    block = raw[:512]
    block[124:136] = b"%011o\0" % (MAX_EXTENSION_BYTES * 1024)
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    asked: list[int] = []

    def read(size: int) -> bytes:
        asked.append(size)
        return bytes(block) if len(asked) == 1 else b"\0" * size

    with pytest.raises(Malformed, match="extension header claims"):
        list(read_tar(read))
    assert max(asked) <= 512


@pytest.mark.parametrize(
    "records",
    [
        b"5 a=b\n",
        b"99 path=x\n",
        b"x path=a\n",
        b"9 path=xy\n",
        b"11 size=-11\n",
        b"14 size=999x9\n",
        b"12 mtime=1e5\n",
        b"6 path\n",
    ],
)
def test_damaged_pax_records_are_refused(records: bytes) -> None:
    """Lengths that do not fit, values that are no numbers."""

    def fill(tar: tarfile.TarFile) -> None:
        add(tar, "header", records, type=tarfile.XHDTYPE)
        add(tar, "file", b"data")

    with pytest.raises(Malformed):
        read_all(archive(fill, tarfile.USTAR_FORMAT))


def test_what_is_no_archive_is_said_to_be_none() -> None:
    """Any other file fails at its first block."""
    with pytest.raises(Malformed, match=r"checksum|impossible"):
        read_all(b"PK\x03\x04 this is something else".ljust(1024, b"!"))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_no_damage_makes_it_fail_in_another_way(data: st.DataObject) -> None:
    """Whatever bytes are changed, the answer is members or `Malformed`, in memory bounded by the input."""

    def fill(tar: tarfile.TarFile) -> None:
        add(tar, "d" * 120 + "/" + "e" * 120, b"content", mtime=1.5, uid=2**40)
        add(tar, "link", type=tarfile.SYMTYPE, linkname="t" * 200)

    raw = bytearray(archive(fill, data.draw(st.sampled_from([tarfile.PAX_FORMAT, tarfile.GNU_FORMAT]))))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):  # make the header's checksum fit, so that the damage reaches the code behind it
            start = at // 512 * 512
            raw[start + 148 : start + 156] = b" " * 8
            raw[start + 148 : start + 156] = b"%06o\0 " % sum(raw[start : start + 512])
    with suppress(Malformed):
        for item in read_tar(io.BytesIO(bytes(raw)).read):
            assert not isinstance(item, Data) or len(item.data) <= len(raw)
