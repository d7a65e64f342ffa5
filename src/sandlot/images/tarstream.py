"""A tar archive as a stream of members and pieces of data, in bounded memory, trusting nothing.

Reads what image builders write: ustar, GNU (long names, base-256 numbers, old sparse files) and pax (paths, sizes, times,
sparse 0.1 and 1.0). The standard library's reader is not used here because it takes extension headers of any size into
memory and keeps every member it has seen; both are gifts to a hostile archive.

Formats: POSIX.1-2017 `pax`, and "Basic Tar Format" of the GNU tar manual.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from sandlot.limits import MAX_CHUNK_BYTES, MAX_PATH_BYTES

BLOCK: Final = 512
MAX_EXTENSION_BYTES: Final = 1_048_576  # one pax header or long name; real ones have a few hundred bytes
MAX_EXTENTS: Final = 65_536  # pieces of one sparse file
_MAX_SIZE: Final = 2**62  # what an off_t can hold, with room for arithmetic

Kind = Literal["file", "dir", "link", "hard", "fifo", "char", "block"]
_KINDS: Final[dict[bytes, Kind]] = {
    b"0": "file", b"\0": "file", b"7": "file", b"S": "file",
    b"1": "hard", b"2": "link", b"3": "char", b"4": "block", b"5": "dir", b"6": "fifo",
}  # fmt: skip


class Malformed(Exception):
    """The archive is not what it should be; the text says what and where."""


@dataclass(frozen=True, slots=True)
class Member:
    """One member as the archive says it; nothing about it has been judged."""

    path: bytes
    kind: Kind
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    mtime_ns: int = 0
    size: int = 0
    """Bytes of the file as it shall be, holes included."""
    target: bytes = b""
    device: tuple[int, int] = (0, 0)


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of the latest member from position `at`; what no piece covers is a hole."""

    at: int
    data: bytes


Read = Callable[[int], bytes]
"""Up to n bytes of the archive; fewer only at its end."""


@dataclass(slots=True)
class _Extra:
    """What extension headers say of the next member, over what its own header says."""

    pax: dict[bytes, bytes] = field(default_factory=dict)
    name: bytes | None = None
    link: bytes | None = None


@dataclass(frozen=True, slots=True)
class Header:
    """One member's header: after it, the archive holds `stored` bytes of data and the padding to a whole block."""

    member: Member
    stored: int
    extents: list[tuple[int, int]]
    """(position in the file, length) of each piece of the stored bytes."""


def read_tar(read: Read) -> Iterator[Member | Data]:
    """Members in order, each file followed by its data.

    Raises:
        Malformed: a bad checksum, an impossible number, a member cut short, an extension beyond its limit.
    """
    for header in read_headers(read):
        yield header.member
        yield from _data(read, header.member.path, header.extents)
        _skip_padding(read, header.stored)


def read_headers(read: Read) -> Iterator[Header]:
    """Headers in order; before the next one the caller consumes the member's `padded(stored)` bytes. Raises as `read_tar`."""
    shared: dict[bytes, bytes] = {}
    extra = _Extra()
    while (header := _next_header(read)) is not None:
        kind = header[156:157]
        size = _number(header[124:136], "size")
        if kind == b"g":
            shared |= _pax(_extension(read, size))
        elif kind == b"x":
            extra.pax = _pax(_extension(read, size))
        elif kind == b"L":
            extra.name = _extension(read, size).rstrip(b"\0")
        elif kind == b"K":
            extra.link = _extension(read, size).rstrip(b"\0")
        else:
            extra.pax = shared | extra.pax
            yield _member(read, header, extra)
            extra = _Extra()
    if extra.pax or extra.name is not None or extra.link is not None:
        raise Malformed("the archive ends after an extension header that belongs to a member")


def padded(size: int) -> int:
    """A size rounded up to whole blocks."""
    return size + -size % BLOCK


def _next_header(read: Read) -> bytes | None:
    """The next header block, or None at the end mark or the end of the stream."""
    block = read(BLOCK)
    if not block:
        return None
    if len(block) < BLOCK:
        raise Malformed("the archive ends in the middle of a header")
    if not block.strip(b"\0"):
        return None
    told = _number(block[148:156], "checksum")
    unsigned = sum(block) - sum(block[148:156]) + 8 * 0x20
    if told != unsigned:
        raise Malformed("a header has a wrong checksum: this is no tar archive, or it is damaged")
    return block


def _number(raw: bytes, what: str) -> int:
    """Octal text, or GNU's base-256 when the first bit is set."""
    if raw[0] & 0x80:
        value = int.from_bytes(raw, "big", signed=False) - (0x80 << 8 * (len(raw) - 1))
        if raw[0] == 0xFF:
            value = int.from_bytes(raw, "big", signed=True)
    else:
        text = raw.strip(b" \0")
        if text.strip(b"01234567"):
            raise Malformed(f"a header has an impossible {what}")
        value = int(text, 8) if text else 0
    if not -_MAX_SIZE <= value <= _MAX_SIZE or (value < 0 and what != "mtime"):
        raise Malformed(f"a header has an impossible {what}")
    return value


def _extension(read: Read, size: int) -> bytes:
    if size > MAX_EXTENSION_BYTES:
        raise Malformed(f"an extension header claims {size} bytes; at most {MAX_EXTENSION_BYTES} are taken")
    data = read(size)
    if len(data) < size:
        raise Malformed("the archive ends in the middle of an extension header")
    _skip_padding(read, size)
    return data


def _skip_padding(read: Read, size: int) -> None:
    padding = -size % BLOCK
    if len(read(padding)) < padding:
        raise Malformed("the archive ends in the middle of a member")


def _pax(raw: bytes) -> dict[bytes, bytes]:
    """Records `LENGTH KEY=VALUE\\n`; a later record of a key replaces the earlier one."""
    records: dict[bytes, bytes] = {}
    at = 0
    while at < len(raw):
        space = raw.find(b" ", at, at + 20)
        digits = raw[at:space] if space >= 0 else b""
        if not digits.isdigit():
            raise Malformed("a pax header has a record without a length")
        end = at + int(digits)
        if end > len(raw) or end <= space + 1 or raw[end - 1 : end] != b"\n":
            raise Malformed("a pax header has a record with a wrong length")
        key, equals, value = raw[space + 1 : end - 1].partition(b"=")
        if not equals:
            raise Malformed("a pax header has a record without a value")
        records[key] = value
        at = end
    return records


def _member(read: Read, header: bytes, extra: _Extra) -> Header:
    flag = header[156:157]
    kind = _KINDS.get(flag)
    if kind is None:
        raise Malformed(f"a member of unknown type {flag!r}")
    stored = _pax_number(extra.pax, b"size", _number(header[124:136], "size"))
    member = _described(header, extra, kind)
    if member.kind != "file":
        stored = 0  # a size here is only a hint (directories in old formats); no data follows
    if flag == b"S":
        extents, real = _old_sparse(read, header)
    elif b"GNU.sparse.major" in extra.pax or b"GNU.sparse.map" in extra.pax:
        extents, real, used = _pax_sparse(read, extra.pax, stored)
        stored -= used
    else:
        extents, real = [(0, stored)], stored
    if sum(length for _, length in extents) != stored:
        raise Malformed(f"sparse file {member.path!r} has a map that does not fit its data")
    return Header(replace(member, size=real), stored, extents)


def _data(read: Read, path: bytes, extents: list[tuple[int, int]]) -> Iterator[Data]:
    for start, length in extents:
        done = 0
        while done < length:
            wanted = min(length - done, MAX_CHUNK_BYTES)
            data = read(wanted)
            if len(data) < wanted:
                raise Malformed(f"the archive ends in the middle of {path!r}")
            yield Data(start + done, data)
            done += wanted


def _described(header: bytes, extra: _Extra, kind: Kind) -> Member:
    """What header and extensions together say, the size aside."""
    pax = extra.pax
    name = header[0:100].split(b"\0", 1)[0]
    if header[257:263] == b"ustar\0" and (prefix := header[345:500].split(b"\0", 1)[0]):
        name = prefix + b"/" + name
    path = pax.get(b"GNU.sparse.name") or pax.get(b"path") or extra.name or name
    target = pax.get(b"linkpath") or extra.link or header[157:257].split(b"\0", 1)[0]
    if len(path) > MAX_PATH_BYTES or len(target) > MAX_PATH_BYTES:
        raise Malformed(f"a name of more than {MAX_PATH_BYTES} bytes: {path[:60]!r}...")
    if kind == "file" and header[156:157] in (b"0", b"\0") and path.endswith(b"/"):
        kind = "dir"  # how archives from before ustar write a directory
    device = (0, 0)
    if kind in ("char", "block"):
        device = (_number(header[329:337], "device number"), _number(header[337:345], "device number"))
    return Member(
        path=path,
        kind=kind,
        mode=_number(header[100:108], "mode") & 0o7777,
        uid=_pax_number(pax, b"uid", _number(header[108:116], "uid")),
        gid=_pax_number(pax, b"gid", _number(header[116:124], "gid")),
        mtime_ns=_pax_time(pax, _number(header[136:148], "mtime")),
        target=target if kind in ("link", "hard") else b"",
        device=device,
    )


def _pax_number(pax: dict[bytes, bytes], key: bytes, default: int) -> int:
    text = pax.get(key)
    if not text:
        return default
    if not text.isdigit() or len(text) > 19 or int(text) > _MAX_SIZE:
        raise Malformed(f"a pax header has an impossible {key.decode()}")
    return int(text)


def _pax_time(pax: dict[bytes, bytes], default_s: int) -> int:
    """Nanoseconds since 1970 from decimal seconds, cut to 64 bits."""
    text = pax.get(b"mtime")
    if not text:
        seconds, nanoseconds = default_s, 0
    else:
        whole, _, fraction = text.partition(b".")
        if not whole.removeprefix(b"-").isdigit() or len(whole) > 20 or (fraction and not fraction.isdigit()):
            raise Malformed("a pax header has an impossible mtime")
        seconds, nanoseconds = int(whole), int(fraction[:9].ljust(9, b"0"))
        if whole.startswith(b"-"):
            nanoseconds = -nanoseconds
    return max(-(2**63), min(2**63 - 1, seconds * 1_000_000_000 + nanoseconds))


# --- sparse files ----------------------------------------------------------------------------------------------------
def _old_sparse(read: Read, header: bytes) -> tuple[list[tuple[int, int]], int]:
    """GNU's old form: up to 4 extents in the header, 21 in each block that follows."""
    real = _number(header[483:495], "sparse size")
    pairs = _pairs(header[386:482], 4)
    more = header[482]
    while more:
        block = read(BLOCK)
        if len(block) < BLOCK or len(pairs) > MAX_EXTENTS:
            raise Malformed("a sparse file has a map that is cut short or too long")
        pairs += _pairs(block, 21)
        more = block[504]
    return _checked(pairs, real), real


def _pairs(raw: bytes, count: int) -> list[tuple[int, int]]:
    """(offset, length) fields of 12 bytes each, up to the first empty one."""
    pairs = []
    for at in range(0, count * 24, 24):
        if not raw[at : at + 24].strip(b"\0"):
            break
        pairs.append((_number(raw[at : at + 12], "sparse offset"), _number(raw[at + 12 : at + 24], "sparse length")))
    return pairs


def _pax_sparse(read: Read, pax: dict[bytes, bytes], stored: int) -> tuple[list[tuple[int, int]], int, int]:
    """Extents, real size, and how many of the stored bytes were the map itself (pax form 1.0)."""
    real = _pax_number(pax, b"GNU.sparse.realsize", _pax_number(pax, b"GNU.sparse.size", 0))
    if b"GNU.sparse.map" in pax:  # 0.1
        numbers = pax[b"GNU.sparse.map"].split(b",")
        return _checked(_paired(numbers), real), real, 0
    if pax.get(b"GNU.sparse.major") != b"1":
        raise Malformed("a sparse file in a form that is not known")
    numbers, used = _read_map(read, stored)
    return _checked(_paired(numbers), real), real, used


def _read_map(read: Read, stored: int) -> tuple[list[bytes], int]:
    """The numbers of a map that lies before a file's data, one a line, the first saying how many pairs follow."""
    text = bytearray()
    lines = wanted = 0
    while not lines or lines < wanted:
        if len(text) >= min(stored, MAX_EXTENSION_BYTES):
            raise Malformed("a sparse file has a map that is cut short or too long")
        block = read(BLOCK)
        if len(block) < BLOCK:
            raise Malformed("the archive ends in the middle of a sparse map")
        text += block
        lines += block.count(b"\n")
        if lines and not wanted:
            wanted = 1 + 2 * _decimal(bytes(text[: text.index(b"\n")]))
    return bytes(text).split(b"\n")[1:wanted], len(text)


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 19:
        raise Malformed("a sparse file has an impossible number in its map")
    return int(text)


def _paired(numbers: list[bytes]) -> list[tuple[int, int]]:
    if len(numbers) % 2 or len(numbers) > 2 * MAX_EXTENTS:
        raise Malformed("a sparse file has a map that is cut short or too long")
    values = [_decimal(number) for number in numbers]
    return list(zip(values[::2], values[1::2], strict=True))


def _checked(pairs: list[tuple[int, int]], real: int) -> list[tuple[int, int]]:
    """The extents when they rise, do not overlap, and end within the file."""
    end = 0
    for start, length in pairs:
        if start < end or start + length > real:
            raise Malformed("a sparse file has a map that runs backwards or beyond its size")
        end = start + length
    return [pair for pair in pairs if pair[1]]
