"""Resolving images: unpacked once, found afterwards, and never half there. The tree here is a plain directory."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandlot.backends.local.images.store import Image, ImageStore, Unpacked
from sandlot.errors import BadRequest, Capacity, ImageInvalid, ImageNotFound, SandboxFileError, SandboxNoSpace, SandlotError
from sandlot.sandbox.trees import Item, Piece
from tests.unit.images.layouts import Layout, archive, tar


class PlainTree:
    """Writes files and directories where the real one would, without a sandbox around it."""

    def __init__(self, root: Path, fail: SandlotError | None, gate: asyncio.Event) -> None:
        self.root, self.fail, self.gate = root, fail, gate

    async def clear(self) -> None:
        for path in self.root.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    async def fill(self, items: Callable[[], Iterator[Item]]) -> None:
        path = self.root
        for item in items():
            if isinstance(item, Piece):
                self._append(path, item.data)
                continue
            path = self.root / item.path.decode()
            if item.kind == "dir":
                path.mkdir(exist_ok=True)
                path.chmod(item.mode or 0o755)
            else:
                path.touch()
            await self.gate.wait()
            if self.fail is not None:
                raise self.fail

    def _append(self, path: Path, data: bytes) -> None:
        with open(path, "ab") as file:
            file.write(data)


class Trees:
    """Counts what is opened; may be told to fail or to wait."""

    def __init__(self) -> None:
        self.opened: list[Path] = []
        self.busy = asyncio.Event()
        self.fail: SandlotError | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    @asynccontextmanager
    async def __call__(self, path: Path) -> AsyncIterator[PlainTree]:
        self.opened.append(path)
        self.busy.set()
        yield PlainTree(path, self.fail, self.gate)


@pytest.fixture
def trees() -> Trees:
    return Trees()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "range-root"


LOWER = tar(("tmp", None), ("base", b"lower"))
UPPER = tar(("top", b"x" * 300_000))


@pytest.fixture
def image(tmp_path: Path) -> Path:
    layout = Layout(tmp_path / "image")
    layout.image([LOWER, UPPER], config={"Env": ["A=1", "B=x=y"], "WorkingDir": "/app", "User": "7:8"})
    return layout.write()


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in (cache / "partial").iterdir() if any(path.iterdir())]


def files_named(folder: Path, name: str) -> list[Path]:
    return list(folder.rglob(name))


async def test_an_image_is_unpacked_once_and_then_found(trees: Trees, cache: Path, image: Path) -> None:
    """By another store too: what counts lies on disk."""
    store = ImageStore(cache, trees)
    first = await store.resolve(f"oci:{image}")
    again = await store.resolve(f"oci:{image}")
    other = await ImageStore(cache, trees).resolve(f"oci:{image}")

    assert first == again == other
    assert (first.env, first.workdir, first.user) == (("A=1", "B=x=y"), "/app", "7:8")
    assert [sorted(path.name for path in layer.iterdir()) for layer in first.layers] == [["base", "tmp"], ["top"]]
    assert (first.layers[1] / "top").read_bytes() == b"x" * 300_000
    assert len(trees.opened) == 2


async def test_images_share_the_layers_they_have_in_common(trees: Trees, cache: Path, image: Path, tmp_path: Path) -> None:
    """Layers are found by what is in them."""
    layout = Layout(tmp_path / "other")
    layout.image([LOWER, tar(("third", b"3"))])
    first = await ImageStore(cache, trees).resolve(f"oci:{image}")
    second = await ImageStore(cache, trees).resolve(str(archive(layout.write(), tmp_path / "other.tar")))
    assert first.layers[0] == second.layers[0]
    assert len(trees.opened) == 3


async def test_a_layer_that_took_modes_from_below_fits_that_stack_only(trees: Trees, cache: Path, tmp_path: Path) -> None:
    """The same layer over another base is another directory."""
    top = tar(("tmp/f", b"1"))
    layers = []
    for number, mode in enumerate((0o1777, 0o700)):
        layout = Layout(tmp_path / f"image{number}")
        layout.image([tar(("tmp", None), (f"base{number}", b"")), top])
        image = await ImageStore(cache, trees).resolve(f"oci:{layout.write()}")
        assert (image.layers[1] / "tmp").stat().st_mode & 0o7777 == 0o755
        (image.layers[0] / "tmp").chmod(mode)
        layers.append(image.layers[1])
    assert layers[0] != layers[1]
    assert {layer.parent.name for layer in layers} == {"stacks"}


async def test_a_rewritten_image_is_read_again(trees: Trees, cache: Path, image: Path, tmp_path: Path) -> None:
    """What is remembered of a layout ends when its index changes, or when its layers are removed from the cache."""
    store = ImageStore(cache, trees)
    first = await store.resolve(f"oci:{image}")
    layout = Layout(image)
    layout.image([tar(("new", b"1"))], config={"User": "root"})
    layout.write()
    assert (await store.resolve(f"oci:{image}")).user == "root"
    shutil.rmtree(cache / "layers")
    assert (await store.resolve(f"oci:{image}")).layers[0].is_dir()
    assert first.user == "7:8"


async def test_creates_at_once_unpack_once(trees: Trees, cache: Path, image: Path) -> None:
    """Within one store and between stores, as between processes: the lock is on a file."""
    stores = [ImageStore(cache, trees) for _ in range(3)]
    images = await asyncio.gather(*(store.resolve(f"oci:{image}") for store in stores for _ in range(4)))
    assert len(set(images)) == 1
    assert len(trees.opened) == 2


async def test_whoever_waits_goes_on_when_the_one_who_unpacks_is_cancelled(trees: Trees, cache: Path, image: Path) -> None:
    """Its half-made layer is not seen and not kept."""
    trees.gate.clear()
    first = asyncio.create_task(ImageStore(cache, trees).resolve(f"oci:{image}"))
    await trees.busy.wait()
    second = asyncio.create_task(ImageStore(cache, trees).resolve(f"oci:{image}"))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    trees.gate.set()
    assert (await second).layers[0].is_dir()
    assert leftovers(cache) == []


async def test_what_a_killed_process_left_is_cleared(trees: Trees, cache: Path, image: Path) -> None:
    """The partial directory of a layer is taken over by the next who unpacks it."""
    store = ImageStore(cache, trees)
    trees.fail = SandboxNoSpace("disk full")
    with pytest.raises(Capacity):
        await store.resolve(f"oci:{image}")
    trees.fail = None
    partial = next((cache / "partial").iterdir())
    (partial / "junk").write_text("of a killed process")
    found = await store.resolve(f"oci:{image}")
    assert not (found.layers[0] / "junk").exists()


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        (SandboxNoSpace("no space left"), Capacity, "no room to unpack"),
        (SandboxFileError("not a directory", path="a/b", number=errno.ENOTDIR), ImageInvalid, "cannot be unpacked"),
        (BadRequest("a hard link to no file of this transfer"), ImageInvalid, "cannot be unpacked"),
    ],
)
async def test_a_failed_write_leaves_nothing(
    trees: Trees, cache: Path, image: Path, fault: SandlotError, kind: type[SandlotError], text: str
) -> None:
    """A full disk is not the image's fault; anything else a hostile tree provokes is."""
    trees.fail = fault
    with pytest.raises(kind, match=text):
        await ImageStore(cache, trees).resolve(f"oci:{image}")
    assert leftovers(cache) == []
    assert list((cache / "layers").iterdir()) == []


async def test_a_damaged_layer_leaves_nothing_and_names_the_image(trees: Trees, cache: Path, image: Path) -> None:
    """The damage shows at the end of the layer at the latest, when its files are already written."""
    for blob in (image / "blobs" / "sha256").iterdir():
        raw = blob.read_bytes()
        if raw.startswith(b"\x1f\x8b"):
            blob.write_bytes(raw[:-6] + b"\0\0\0\0\0\0")
    with pytest.raises(ImageInvalid, match="damaged") as caught:
        await ImageStore(cache, trees).resolve(f"oci:{image}")
    assert str(image) in str(caught.value)
    assert leftovers(cache) == []
    assert list((cache / "layers").iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", "/etc/passwd", "a/../../evil"])
async def test_a_hostile_name_is_refused_before_it_is_written(trees: Trees, cache: Path, tmp_path: Path, name: str) -> None:
    """Neither in the cache nor beside it."""
    layout = Layout(tmp_path / "image")
    layout.image([tar(("ok", b"1"), (name, b"evil"))])
    with pytest.raises(ImageInvalid, match="name"):
        await ImageStore(cache, trees).resolve(f"oci:{layout.write()}")
    assert files_named(tmp_path, "evil") == []
    assert leftovers(cache) == []


async def test_names_within_a_layout(trees: Trees, cache: Path, image: Path) -> None:
    """A name that is not there is not found; the answer says which are."""
    with pytest.raises(ImageNotFound, match="holds no 'v9'"):
        await ImageStore(cache, trees).resolve(f"oci:{image}@v9")


@pytest.mark.parametrize("missing", ["oci-layout", "index.json", "blobs"])
async def test_a_layout_without_its_parts_is_invalid(trees: Trees, cache: Path, image: Path, missing: str) -> None:
    """What is missing is named."""
    path = image / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    with pytest.raises(ImageInvalid, match=f"{missing}.*missing"):
        await ImageStore(cache, trees).resolve(f"oci:{image}")


async def test_an_old_docker_archive_is_called_what_it_is(trees: Trees, cache: Path, tmp_path: Path) -> None:
    """Not just a layout with something missing."""
    folder = tmp_path / "docker"
    folder.mkdir()
    (folder / "manifest.json").write_text("[]")
    with pytest.raises(ImageInvalid, match="Docker archive"):
        await ImageStore(cache, trees).resolve(f"oci-archive:{archive(folder, tmp_path / 'docker.tar')}")


async def test_progress_is_told_step_by_step(trees: Trees, cache: Path, image: Path) -> None:
    """Start, bytes, end of each layer: enough for a bar."""
    steps: list[Unpacked] = []
    await ImageStore(cache, trees, steps.append).resolve(f"oci:{image}")
    assert [(step.layer, step.layers) for step in steps if step.done] == [(1, 2), (2, 2)]
    assert [step.bytes for step in steps if step.done] == [5, 300_000]
    assert json.dumps(steps[0].image) == json.dumps(f"oci:{image}")


async def test_directories_and_the_host_need_nothing(trees: Trees, cache: Path, tmp_path: Path) -> None:
    """No cache is made for them."""
    store = ImageStore(cache, trees)
    assert await store.resolve("host") == Image("host")
    assert await store.resolve(f"dir:{tmp_path}") == Image("layers", (tmp_path,))
    assert files_named(tmp_path, "cache") == []
