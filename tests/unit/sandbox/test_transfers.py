"""Trees over the wire, against a daemon that keeps what it got and gives it back; in real time, since threads do the files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from sandlot import errors
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.sandbox import Sandbox
from sandlot.testing.scripted import ScriptedDaemon


@pytest.fixture
async def box(daemon: ScriptedDaemon) -> Sandbox:
    """A sandbox behind the scripted daemon."""
    return Sandbox(await daemon.connect(), name="box", reopen=daemon.connect)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """More than a window of data, and more entries than one batch."""
    root = tmp_path / "tree"
    (root / "many").mkdir(parents=True)
    for i in range(600):
        (root / "many" / f"{i:03}").write_bytes(b"%d" % i)
    (root / "big").write_bytes(os.urandom(3_000_000))
    (root / "link").symlink_to("big")
    return root


async def take_tree(daemon: ScriptedDaemon, *, until: int | None = None) -> list[r.Message]:
    """Everything of one upload, acknowledged as it comes; only the first `until` messages if given."""
    request = await daemon.next(r.Upload)
    taken: list[r.Message] = []
    while until is None or len(taken) < until:
        message = await daemon.next(r.Message)
        if isinstance(message, r.End):
            daemon.send(a.TransferOk(request.id, files=601, dirs=2, links=1, data_bytes=3_001_690))
            break
        taken.append(message)
        if isinstance(message, r.Data):
            daemon.send(r.Ack(request.id, 0, message.off + len(message.d)))
    return taken


async def give_tree(daemon: ScriptedDaemon, id_: int, tree: list[r.Message]) -> None:
    """The same the other way: within the window, as its acknowledgements allow."""
    acked = sent = 0
    for message in tree:
        if isinstance(message, r.Data):
            while sent + len(message.d) > acked + 1_048_576:
                acked = (await daemon.next(r.Ack)).off
            daemon.send(r.Data(id_, 1, sent, message.d, message.at))
            sent += len(message.d)
        elif isinstance(message, r.Entry):
            daemon.send(r.Entry(id_, message.path, message.kind, message.mode, message.mtime_ns, message.size, message.target))
    daemon.send(a.TransferOk(id_, files=601, data_bytes=sent))


def contents(root: Path) -> dict[str, object]:
    return {
        str(path.relative_to(root)): os.readlink(path) if path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


async def test_tree_goes_up_and_comes_down(daemon: ScriptedDaemon, box: Sandbox, tree: Path, tmp_path: Path) -> None:
    """Whole, in order, within the windows of both ways."""
    uploading = asyncio.create_task(box.upload(tree, "/repo"))
    taken = await take_tree(daemon)
    assert (await uploading).files == 601
    downloading = asyncio.create_task(box.download("/repo", tmp_path / "copy"))
    await give_tree(daemon, (await daemon.next(r.Download)).id, taken)
    await downloading
    assert contents(tmp_path / "copy") == contents(tree)


async def test_upload_begins_again_on_a_new_link(daemon: ScriptedDaemon, box: Sandbox, tree: Path) -> None:
    """Half a tree is never mixed with the other half of a second try."""
    uploading = asyncio.create_task(box.upload(tree, "/repo"))
    await take_tree(daemon, until=50)
    daemon.reset()
    daemon.received.clear()
    taken = await take_tree(daemon)
    await uploading
    entries = [message.path for message in taken if isinstance(message, r.Entry)]
    assert len(entries) == len(set(entries)) == 604
    assert sum(len(message.d) for message in taken if isinstance(message, r.Data)) == 3_001_690


async def test_download_begins_again_on_a_new_link(daemon: ScriptedDaemon, box: Sandbox, tmp_path: Path) -> None:
    """What had come of the first try is overwritten."""
    downloading = asyncio.create_task(box.download("/repo", tmp_path / "copy"))
    request = await daemon.next(r.Download)
    file = r.Entry(0, b"f", "file", size=3)
    daemon.send(r.Entry(request.id, b"", "dir"), r.Entry(request.id, b"f", "file", size=3), r.Data(request.id, 1, 0, b"old"))
    await asyncio.sleep(0.05)
    daemon.reset()
    request = await daemon.next(r.Download)
    await give_tree(daemon, request.id, [r.Entry(0, b"", "dir"), file, r.Data(0, 1, 0, b"new")])
    await downloading
    assert contents(tmp_path / "copy") == {"f": b"new"}


async def test_changes_are_a_value_that_can_be_applied(daemon: ScriptedDaemon, box: Sandbox) -> None:
    """The data outlives the call that brought it."""
    looking = asyncio.create_task(box.changes("/repo"))
    request = await daemon.next(r.Changes)
    daemon.send(
        r.Entry(request.id, b"a", "file", mode=0o644, size=3), r.Data(request.id, 1, 0, b"abc", 0),
        r.Entry(request.id, b"old", "gone"), a.TransferOk(request.id, files=1, data_bytes=3),
    )  # fmt: skip
    diff = await looking
    assert (diff.paths, diff.read("a")) == (("a", "old"), b"abc")
    applying = asyncio.create_task(box.apply(diff, "/repo"))
    taken = await take_tree(daemon)
    await applying
    assert [(m.path, m.kind) for m in taken if isinstance(m, r.Entry)] == [(b"a", "file"), (b"old", "gone")]
    assert [m.d for m in taken if isinstance(m, r.Data)] == [b"abc"]


async def test_cancelled_download_leaves_no_half_file(daemon: ScriptedDaemon, box: Sandbox, tmp_path: Path) -> None:
    """And cancels at the daemon."""
    downloading = asyncio.create_task(box.download("/repo", tmp_path / "copy"))
    request = await daemon.next(r.Download)
    daemon.send(r.Entry(request.id, b"", "dir"), r.Entry(request.id, b"f", "file", size=9), r.Data(request.id, 1, 0, b"half"))
    await asyncio.sleep(0.05)
    downloading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await downloading
    assert os.listdir(tmp_path / "copy") == []
    assert (await daemon.next(r.Cancel)).id == request.id


async def test_local_disk_that_refuses_is_a_local_error(daemon: ScriptedDaemon, box: Sandbox, tmp_path: Path) -> None:
    """An OSError that is not a sandbox's, and the transfer is cancelled there."""
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "f").mkdir()
    downloading = asyncio.create_task(box.download("/repo", tmp_path / "copy"))
    request = await daemon.next(r.Download)
    daemon.send(r.Entry(request.id, b"", "dir"), r.Entry(request.id, b"f", "link", target=b"x"))
    with pytest.raises(IsADirectoryError) as refused:
        await downloading
    assert not isinstance(refused.value, errors.SandlotError)
    assert (await daemon.next(r.Cancel)).id == request.id


async def test_error_of_the_sandbox_ends_an_upload_at_once(daemon: ScriptedDaemon, box: Sandbox, tree: Path) -> None:
    """No more of the tree is read than was under way."""
    uploading = asyncio.create_task(box.upload(tree, "/repo"))
    request = await daemon.next(r.Upload)
    daemon.send(a.Error(request.id, "no_space", "disk full", errno=28))
    with pytest.raises(errors.SandboxNoSpace):
        await uploading


async def test_missing_source_sends_nothing(daemon: ScriptedDaemon, box: Sandbox, tmp_path: Path) -> None:
    """A local mistake is a local error."""
    with pytest.raises(FileNotFoundError):
        await box.upload(tmp_path / "none", "/repo")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(errors.BadRequest):
        await box.upload(tmp_path / "pipe", "/repo")
    assert daemon.received == []
