"""Images unpacked for real: what is in them, what is refused, and that unpacking is done once and leaves no trace."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import sandlot
from sandlot.backends.local.images.store import Unpacked
from sandlot.errors import ImageInvalid
from sandlot.provider import Provider
from sandlot.spec import Spec
from tests.images.build import archive, image
from tests.images.oci import ImageConfig, Layout


class Layer:
    """A tar archive, member by member."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    def add(self, name: str, data: bytes | None = None, **fields: object) -> Layer:
        info = tarfile.TarInfo(name)
        info.mode = 0o644
        if data is None and "type" not in fields:
            info.type, info.mode = tarfile.DIRTYPE, 0o755
        for key, value in fields.items():
            setattr(info, key, value)
        info.size = len(data or b"")
        self._tar.addfile(info, io.BytesIO(data or b""))
        return self

    def done(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()


def busybox_layer() -> bytes:
    """The lowest layer of the tests' busybox image."""
    import gzip

    layout = Path(image("busybox").removeprefix("oci:").rpartition("@")[0])
    manifest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
    described = json.loads((layout / "blobs/sha256" / manifest[7:]).read_text())["layers"][0]["digest"]
    return gzip.decompress((layout / "blobs/sha256" / described[7:]).read_bytes())


def build(folder: Path, *layers: bytes, config: ImageConfig | None = None) -> str:
    Layout(folder).image("t", [busybox_layer(), *layers], config or ImageConfig(env=("PATH=/bin",)))
    return f"oci:{folder}@t"


def spec(reference: str) -> Spec:
    return Spec(image=reference, limits="best-effort")


async def run(provider: Provider, reference: str, script: str) -> str:
    async with await provider.create(spec(reference)) as box:
        result = await box.exec(script)
    assert result.exit_code == 0, result.stderr
    return result.stdout


async def test_layers_are_stacked_with_removals(provider: Provider, tmp_path: Path) -> None:
    """A later layer replaces files, hides single ones, and hides all that lay in a directory."""
    lower = Layer().add("d").add("d/kept", b"1").add("d/hidden", b"2").add("o").add("o/below", b"3").add("r", b"old").done()
    upper = (
        Layer().add("d").add("d/.wh.hidden", b"").add("o").add("o/.wh..wh..opq", b"").add("o/new", b"4").add("r", b"new").done()
    )
    found = await run(provider, build(tmp_path / "i", lower, upper), "ls d o; cat r")
    assert found.split() == ["d:", "kept", "o:", "new", "new"]


async def test_owners_modes_links_and_times_are_the_images(provider: Provider, tmp_path: Path) -> None:
    """Set-user-ID bits, numeric owners, symbolic links as they are, hard links as one file."""
    layer = (
        Layer()
        .add("x", mode=0o1777)
        .add("x/f", b"content", mode=0o4755, uid=1234, gid=4321, mtime=86_400)
        .add("x/h", type=tarfile.LNKTYPE, linkname="x/f")
        .add("x/l", type=tarfile.SYMTYPE, linkname="/etc/../nowhere")
        .add("x/empty", b"")
        .done()
    )
    script = "stat -c '%a %u %g %h %Y' x/f; stat -c %a x; readlink x/l; stat -c %s x/empty; test x/f -ef x/h && echo same"
    found = await run(provider, build(tmp_path / "i", layer), f"cd /; {script}")
    assert found.split() == ["4755", "1234", "4321", "2", "86400", "1777", "/etc/../nowhere", "0", "same"]


async def test_the_config_is_honoured(provider: Provider, tmp_path: Path) -> None:
    """Environment, work folder and user are the image's; its entry point does not run."""
    config = ImageConfig(env=("PATH=/bin", "A=b c"), workdir="/made/here", user="nobody", entrypoint=("/bin/false",))
    found = await run(provider, build(tmp_path / "i", config=config), "pwd; echo $A; id -un")
    assert found.splitlines() == ["/made/here", "b c", "nobody"]


async def test_an_archive_is_the_same_image(provider: Provider) -> None:
    """As a folder or as one file, and the layers are shared."""
    for reference in (image("busybox"), archive("busybox")):
        assert await run(provider, reference, "echo hi") == "hi\n"


async def test_a_layer_that_does_not_name_its_directories_keeps_their_modes(provider: Provider, tmp_path: Path) -> None:
    """/tmp stays sticky and open when a layer only adds a file to it."""
    found = await run(provider, build(tmp_path / "i", Layer().add("tmp/f", b"1").done()), "stat -c %a /tmp")
    assert found == "1777\n"


HOSTILE = {
    "an absolute name": Layer().add("/etc/evil", b"x").done(),
    "a name that leaves": Layer().add("../evil", b"x").done(),
    "a name that leaves later": Layer().add("a/../../evil", b"x").done(),
    "a hard link out": Layer().add("h", type=tarfile.LNKTYPE, linkname="../../etc/passwd").done(),
    "a hard link to nothing": Layer().add("h", type=tarfile.LNKTYPE, linkname="no/such").done(),
    "a file through a link": Layer().add("l", type=tarfile.SYMTYPE, linkname="/tmp").add("l/evil", b"x").done(),
    "a file through a link upwards": Layer().add("l", type=tarfile.SYMTYPE, linkname="../..").add("l/evil", b"x").done(),
    "a device": Layer().add("disk", type=tarfile.BLKTYPE, devmajor=8, devminor=0).done(),
    "a file as a directory": Layer().add("f", b"x").add("f/evil", b"x").done(),
    "cut short": Layer().add("f", b"x" * 100_000).done()[:50_000],
    "no archive": b"\x7fELF" + b"x" * 10_000,
}


@pytest.mark.parametrize("what", list(HOSTILE))
async def test_a_hostile_layer_is_refused_and_leaves_nothing(
    provider: Provider, cache: Path, tmp_path: Path, what: str
) -> None:
    """The error names the image; nothing was written outside, nothing half-unpacked is kept, and the next image works."""
    reference = build(tmp_path / "i", HOSTILE[what])
    with pytest.raises(ImageInvalid) as caught:
        await provider.create(spec(reference))
    assert reference in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not list(Path("/tmp").glob("evil")) + list(tmp_path.rglob("evil"))
    assert list(cache.glob("*/partial/*/*")) == []
    assert await run(provider, image("busybox"), "echo fine") == "fine\n"


async def test_a_damaged_blob_is_refused(provider: Provider, tmp_path: Path) -> None:
    """One changed byte in a layer of a real image."""
    reference = build(tmp_path / "i", Layer().add("f", os.urandom(100_000)).done())
    largest = max((tmp_path / "i" / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    raw = bytearray(largest.read_bytes())
    raw[len(raw) // 2] ^= 1
    largest.write_bytes(raw)
    with pytest.raises(ImageInvalid, match="damaged"):
        await provider.create(spec(reference))


async def test_many_creates_at_once_unpack_once(provider: Provider, cache: Path, tmp_path: Path) -> None:
    """And the layer's directory is never written to afterwards."""
    reference = build(tmp_path / "i", Layer().add("f", b"1" * 2_000_000).done())
    boxes = await asyncio.gather(*(provider.create(spec(reference)) for _ in range(8)))
    await asyncio.gather(*(box.exec("echo changed > /f; rm -r /bin/ls; touch /new") for box in boxes))
    layers = list(cache.glob("*/layers/*"))
    assert len(layers) == 2
    assert [path.name for path in layers[0].iterdir() if path.name == "new"] == []
    assert await run(provider, reference, "stat -c %s /f; ls /bin/ls") == "2000000\n/bin/ls\n"


_CREATE = """
import asyncio, sys, sandlot
async def main():
    async with sandlot.local(cache=sys.argv[1]) as provider:
        async with await provider.create(sandlot.Spec(image=sys.argv[2], limits="best-effort")) as box:
            print((await box.exec("cat /f | wc -c")).stdout.strip(), flush=True)
asyncio.run(main())
"""


def start_create(cache: Path, reference: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", _CREATE, str(cache), reference], stdout=subprocess.PIPE, text=True)


def test_processes_share_one_unpacking(cache: Path, tmp_path: Path) -> None:
    """Several processes that want the same new image at once all get it."""
    reference = build(tmp_path / "i", Layer().add("f", b"1" * 5_000_000).done())
    running = [start_create(cache, reference) for _ in range(3)]
    assert [process.communicate(timeout=100)[0].strip() for process in running] == ["5000000"] * 3
    assert len(list(cache.glob("*/layers/*"))) == 2


def test_a_killed_unpacking_is_taken_over(cache: Path, tmp_path: Path) -> None:
    """SIGKILL in the middle: what is half there is never seen, and the next one finishes the work."""
    reference = build(tmp_path / "i", Layer().add("f", os.urandom(40_000_000)).done())
    first = start_create(cache, reference)
    while not list(cache.glob("*/partial/*/*")):
        assert first.poll() is None
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = start_create(cache, reference)
    assert second.communicate(timeout=100)[0].strip() == "40000000"
    assert list(cache.glob("*/partial/*")) == []


async def test_progress_is_told_while_unpacking(cache: Path, tmp_path: Path) -> None:
    """Bytes grow, and each layer ends."""
    steps: list[Unpacked] = []
    reference = build(tmp_path / "i", Layer().add("f", b"1" * 3_000_000).done())
    async with sandlot.local(cache=cache, progress=steps.append) as provider:
        await provider.create(spec(reference))
    sizes = [step.bytes for step in steps if step.layer == 2]
    assert sizes == sorted(sizes)
    assert sizes[-1] == 3_000_000
    assert [step.layer for step in steps if step.done] == [1, 2]
