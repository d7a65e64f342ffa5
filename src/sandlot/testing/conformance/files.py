"""Files: whole or not at all, exact in content, mode and kind, and never outside of where they belong."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
from pathlib import Path

import pytest

from sandlot import errors
from sandlot.testing.conformance import MakeBox, until


async def test_written_bytes_are_read_back(make_box: MakeBox) -> None:
    """Any bytes, also none; parents are made; text view is UTF-8."""
    box = await make_box()
    for data in (b"", b"\0\xff" * 5, bytes(range(256)) * 3000):
        await box.write("/new/dir/f", data)
        assert await box.read("/new/dir/f") == data
    await box.write("/new/text", "ünï\n")
    assert await box.read_text("/new/text") == "ünï\n"


async def test_a_part_of_a_file_can_be_read(make_box: MakeBox) -> None:
    """Offset and limit count bytes; beyond the end is empty."""
    box = await make_box()
    await box.write("/f", b"0123456789")
    assert await box.read("/f", offset=3, limit=4) == b"3456"
    assert await box.read("/f", offset=8, limit=100) == b"89"
    assert await box.read("/f", offset=50) == b""


async def test_files_of_no_size_are_read_to_their_end(make_box: MakeBox) -> None:
    """/proc files have size 0 and content."""
    box = await make_box()
    assert b"MemTotal" in await box.read("/proc/meminfo")
    assert b"Linux" in await box.read("/proc/version")


async def test_large_file_up_and_down(make_box: MakeBox) -> None:
    """28 MiB of noise, both ways, equal by digest."""
    box = await make_box(disk="128MiB")
    data = os.urandom(28 * 2**20)
    await box.write("/big", data)
    digest = (await box.exec("sha256sum /big")).stdout.split()[0]
    assert digest == hashlib.sha256(data).hexdigest()
    assert await box.read("/big") == data


@pytest.mark.parametrize("times", [300])
async def test_a_written_file_is_there_for_the_next_command(make_box: MakeBox, times: int) -> None:
    """Write, then a command sees it: always."""
    box = await make_box()
    for i in range(times):
        await box.write("/f", str(i).encode())
        assert (await box.exec("cat /f")).stdout == str(i)


async def test_file_errors_are_the_local_ones(make_box: MakeBox) -> None:
    """Missing, directory, not a directory, too long: the OSError classes everybody knows, with the path."""
    box = await make_box()
    await box.exec("mkdir /d; echo x > /f; ln -s loop /loop", check=True)
    with pytest.raises(FileNotFoundError) as missing:
        await box.read("/none")
    assert missing.value.filename == "/none"
    with pytest.raises(IsADirectoryError):
        await box.read("/d")
    with pytest.raises(IsADirectoryError):
        await box.write("/d", b"x")
    with pytest.raises(NotADirectoryError):
        await box.read("/f/under")
    with pytest.raises(OSError, match=r".") as loop:
        await box.read("/loop")
    assert loop.value.errno == 40
    with pytest.raises(OSError, match=r"."):
        await box.read("/" + "n" * 300)
    with pytest.raises(errors.BadRequest):
        await box.read("")


async def test_write_keeps_the_mode_of_an_existing_file_and_sets_an_asked_one(make_box: MakeBox) -> None:
    """0755 stays 0755 when content is replaced; a new file is 0644 unless asked."""
    box = await make_box()
    await box.write("/a", b"1", mode=0o755)
    await box.write("/a", b"2")
    await box.write("/b", b"3")
    assert [(await box.stat(p)).mode & 0o7777 for p in ("/a", "/b")] == [0o755, 0o644]


async def test_writing_a_file_replaces_it_whole(make_box: MakeBox) -> None:
    """A reader with the old file open keeps the old content: temporary file and rename; nothing else is left."""
    box = await make_box()
    await box.write("/dir/f", b"old")
    job = await box.start("exec 5< /dir/f; echo open; read go; cat <&5", stdin_open=True)
    async for chunk in job.output():
        if b"open" in chunk.data:
            break
    await box.write("/dir/f", b"new")
    await job.write_stdin(b"go\n", eof=True)
    assert (await job.wait()).stdout.endswith("old")
    assert [entry.name for entry in await box.list("/dir")] == ["f"]


async def test_full_disk_leaves_the_old_file_and_no_part(make_box: MakeBox) -> None:
    """A write that does not fit is an error; the target is the old one and there is no temporary file."""
    box = await make_box(disk="8MiB")
    await box.write("/dir/f", b"old")
    with pytest.raises(OSError, match=r"(?i)space") as full:
        await box.write("/dir/f", bytes(20_000_000))
    assert full.value.errno == 28
    assert await box.read("/dir/f") == b"old"
    assert [entry.name for entry in await box.list("/dir")] == ["f"]


async def test_cancelled_write_leaves_the_old_file_and_no_part(make_box: MakeBox) -> None:
    """Cancelling mid-transfer is as if it had not begun."""
    box = await make_box(disk="256MiB")
    await box.write("/dir/f", b"old")
    for _ in range(5):
        call = asyncio.create_task(box.write("/dir/f", bytes(100_000_000)))
        for _ in range(20):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)

    async def only_the_file() -> bool:
        return [entry.name for entry in await box.list("/dir")] == ["f"]

    await until(only_the_file)
    assert await box.read("/dir/f") in (b"old", bytes(100_000_000))


async def test_links_cannot_lead_out_of_the_sandbox(make_box: MakeBox) -> None:
    """Absolute links and `..` resolve inside the sandbox's own root."""
    box = await make_box()
    await box.exec("ln -s /etc/passwd /l; ln -s ../../../../../../etc/passwd /tmp/up", check=True)
    inside = await box.read("/etc/passwd")
    assert await box.read("/l") == inside
    assert await box.read("/tmp/up") == inside
    assert await box.read("/../../../../etc/passwd") == inside


async def test_stat_list_mkdir_remove(make_box: MakeBox) -> None:
    """The small verbs, with kinds, targets and their errors."""
    box = await make_box()
    await box.mkdir("/d/e/f")
    await box.write("/d/file", b"12345")
    await box.exec("ln -s nowhere /d/link; mkfifo /d/pipe", check=True)
    kinds = {entry.name: entry.kind for entry in await box.list("/d")}
    assert kinds == {"e": "dir", "file": "file", "link": "link", "pipe": "fifo"}
    assert (await box.stat("/d/file")).size == 5
    assert (await box.stat("/d/link", follow=False)).target == "nowhere"
    with pytest.raises(FileNotFoundError):
        await box.stat("/d/link")
    with pytest.raises(OSError, match=r"."):
        await box.remove("/d")
    await box.remove("/d", recursive=True)
    assert not await box.exists("/d")
    with pytest.raises(FileNotFoundError):
        await box.remove("/d")
    await box.remove("/d", missing_ok=True)


async def test_reading_a_pipe_is_an_error_not_a_hang(make_box: MakeBox) -> None:
    """A fifo nobody writes to does not hold the caller."""
    box = await make_box()
    await box.exec("mkfifo /pipe", check=True)
    async with asyncio.timeout(20):
        with pytest.raises((OSError, errors.SandlotError)):
            await box.read("/pipe")


def _tree(root: Path) -> None:
    (root / "sub" / "empty").mkdir(parents=True)
    (root / "f.txt").write_bytes(b"data")
    (root / "run.sh").write_bytes(b"#!/bin/sh\n")
    (root / "run.sh").chmod(0o755)
    (root / "private").write_bytes(b"p")
    (root / "private").chmod(0o600)
    (root / "zero").write_bytes(b"")
    (root / "sub" / "relative").symlink_to("../f.txt")
    (root / "absolute").symlink_to("/etc/passwd")
    (root / "dangling").symlink_to("nothing/here")
    (root / "escaping").symlink_to("../../../../../../etc/shadow")
    (root / "dirlink").symlink_to("sub")
    os.link(root / "f.txt", root / "sub" / "hard")
    with open(root / "sparse", "wb") as file:
        file.seek(8 * 2**20)
        file.write(b"end")
    (root / "sub").chmod(0o2755)
    os.utime(root / "f.txt", ns=(1_600_000_000_123_456_789, 1_600_000_000_123_456_789))
    (root / os.fsdecode(b"name\xff\n")).write_bytes(b"odd")


def _describe(root: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(root.rglob("*")):
        info = path.lstat()
        name = str(path.relative_to(root))
        if stat.S_ISLNK(info.st_mode):
            found[name] = ("link", os.readlink(path))
        elif stat.S_ISDIR(info.st_mode):
            found[name] = ("dir", stat.S_IMODE(info.st_mode))
        else:
            found[name] = ("file", stat.S_IMODE(info.st_mode), path.read_bytes(), info.st_mtime_ns, info.st_nlink)
    return found


async def test_a_tree_goes_up_and_comes_down_unchanged(make_box: MakeBox, tmp_path: Path) -> None:
    """Links stay links wherever they point, hard links hard; modes, times, holes, empty things and odd names are kept."""
    source, target = tmp_path / "up", tmp_path / "down"
    source.mkdir()
    _tree(source)
    box = await make_box()
    await box.upload(source, "/data")
    await box.download("/data", target)
    assert _describe(target) == _describe(source)
    assert (target / "sparse").stat().st_blocks * 512 < 4 * 2**20


async def test_upload_does_not_write_through_links_inside(make_box: MakeBox, tmp_path: Path) -> None:
    """A link that stands where a directory or file of the upload goes is replaced or refused, never followed."""
    source = tmp_path / "up"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "f").write_bytes(b"new")
    (source / "g").write_bytes(b"new")
    box = await make_box()
    await box.exec("mkdir -p /victim /data; echo old > /victim/f; ln -s /victim /data/sub; ln -s /victim/f /data/g", check=True)
    with contextlib.suppress(OSError):  # refused or replaced, both are right
        await box.upload(source, "/data")
    assert await box.read("/victim/f") == b"old\n"


async def test_download_never_writes_outside_its_target(make_box: MakeBox, tmp_path: Path) -> None:
    """Whatever stands in the sandbox, nothing outside of the target directory is touched on this side."""
    outside, target = tmp_path / "outside", tmp_path / "down"
    outside.mkdir()
    (outside / "f").write_bytes(b"mine")
    target.mkdir()
    (target / "d").symlink_to(outside)
    box = await make_box()
    await box.exec(f"mkdir -p /data/d; echo evil > /data/d/f; ln -s {outside} /data/out; echo x > /data/plain", check=True)
    with contextlib.suppress(OSError):  # refused or replaced, both are right
        await box.download("/data", target)
    assert (outside / "f").read_bytes() == b"mine"
    assert [path.name for path in outside.iterdir()] == ["f"]


async def test_single_files_go_up_and_come_down(make_box: MakeBox, tmp_path: Path) -> None:
    """A file path is a file on both sides."""
    (tmp_path / "a").write_bytes(b"content")
    (tmp_path / "a").chmod(0o750)
    box = await make_box()
    await box.upload(tmp_path / "a", "/x/y/b")
    assert (await box.stat("/x/y/b")).mode & 0o7777 == 0o750
    await box.download("/x/y/b", tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == b"content"


async def test_special_files_are_named_not_transferred(make_box: MakeBox, tmp_path: Path) -> None:
    """Fifos and sockets are skipped and told."""
    box = await make_box()
    await box.exec("mkdir /data; mkfifo /data/pipe; echo x > /data/f", check=True)
    report = await box.download("/data", tmp_path / "down")
    assert [os.fsdecode(path) for path in report.skipped] == ["pipe"]
    assert [path.name for path in (tmp_path / "down").iterdir()] == ["f"]


async def test_changes_are_exactly_what_differs_from_the_image(make_box: MakeBox) -> None:
    """New, changed, replaced and removed things below a path, and nothing else; applied to a twin they make the same tree."""
    box = await make_box("debian")
    script = """
    echo new > /etc/new; echo changed >> /etc/hostname.d 2>/dev/null || true; echo x >> /etc/profile; rm /etc/issue
    rm -r /etc/skel && mkdir /etc/skel && echo only > /etc/skel/only; ln -sf nowhere /etc/link; rm -rf /etc/alternatives
    echo elsewhere > /opt/elsewhere
    """
    await box.exec(script, check=True)
    diff = await box.changes("/etc")
    names = {os.fsdecode(entry.path): entry.kind for entry in diff.entries}
    assert names["new"] == "file"
    assert names["profile"] == "file"
    assert names["issue"] == "gone"
    assert names["link"] == "link"
    assert names["alternatives"] == "gone"
    assert not any("elsewhere" in name for name in names)
    assert "passwd" not in names
    twin = await make_box("debian")
    await twin.apply(diff, "/etc")
    # /etc/hosts tells a machine's own address, which may be another for the twin.
    listing = "cd /etc; find . -type f ! -path ./hosts -exec sha256sum {} + | sort -k2; find . ! -type f | sort"
    assert (await twin.exec(listing)).stdout == (await box.exec(listing)).stdout
