"""The daemon stays small: on disk, and in memory for each sandbox."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import sandlot
from sandlot.daemon_binary import find_daemon
from sandlot.testing.observer import daemons

THREE_MIB = 3 * 2**20
PT_INTERP = 3  # "load me by this program": absent from a static file


def test_the_binary_is_static_and_at_most_three_mebibytes() -> None:
    """One file that needs no loader and no library of the image."""
    data = find_daemon().read_bytes()
    assert len(data) <= THREE_MIB
    assert PT_INTERP not in _segment_types(data)


async def test_an_idle_init_has_at_most_three_mebibytes_resident() -> None:
    """Shared pages of the binary included."""
    async with sandlot.local() as provider, await provider.create(sandlot.Spec(image="host")):
        found = [_status(pid) for pid in daemons(os.getpid())]
    inits = [resident for name, resident in found if "init" in name]
    assert inits, found
    assert max(inits) <= THREE_MIB


def _segment_types(elf: bytes) -> list[int]:
    """The types of a 64-bit ELF file's program headers."""
    (start,) = struct.unpack_from("<Q", elf, 32)
    size, count = struct.unpack_from("<HH", elf, 54)
    return [struct.unpack_from("<I", elf, start + size * number)[0] for number in range(count)]


def _status(pid: int) -> tuple[str, int]:
    """Its arguments and its resident bytes."""
    words = Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode()
    lines = dict(line.split(":", 1) for line in Path("/proc", str(pid), "status").read_text().splitlines() if ":" in line)
    return words, int(lines["VmRSS"].split()[0]) * 1024
