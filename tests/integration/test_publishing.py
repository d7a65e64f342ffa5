"""Publishing to a real registry, read back by tools that are not ours."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.backends.kubernetes.publishing import Publisher, Step
from sandlot.backends.kubernetes.publishing.daemon import daemon_layer
from sandlot.backends.kubernetes.publishing.packing import Layer
from sandlot.backends.kubernetes.registry import Registry, parse_repository
from sandlot.backends.kubernetes.registry.credentials import Credentials
from sandlot.daemon_binary import find_daemon
from sandlot.errors import Denied, ImageInvalid
from tests.images.build import archive, image
from tests.registries import serve_registry

pytestmark = pytest.mark.skipif(
    shutil.which("docker-registry") is None or shutil.which("skopeo") is None,
    reason="docker-registry and skopeo are not installed (scripts/system-packages.sh does it)",
)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[str]:
    """A registry with nothing in it."""
    folder = tmp_path / "registry"
    folder.mkdir()
    with serve_registry(folder) as address:
        yield address


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    top = tmp_path / "layer"
    (top / "etc").mkdir(parents=True)
    (top / "etc" / "added").write_text("by the layer\n")
    return top


def inspect(reference: str) -> dict[str, object]:
    command = ["skopeo", "inspect", "--tls-verify=false", f"docker://{reference}"]
    found: dict[str, object] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return found


def unpack(reference: str, tmp_path: Path) -> Path:
    """The image as a bare directory, one layer over the other."""
    layout, root = tmp_path / "copied", tmp_path / "root"
    command = ["skopeo", "copy", "--src-tls-verify=false", f"docker://{reference}", f"dir:{layout}"]
    subprocess.run(command, check=True, capture_output=True)
    root.mkdir()
    for layer in json.loads((layout / "manifest.json").read_text())["layers"]:
        blob = layout / layer["digest"].removeprefix("sha256:")
        subprocess.run(["tar", "-C", str(root), "-xf", str(blob)], check=True)
    return root


async def test_an_image_with_a_layer_over_it_arrives_whole(host: str, tree: Path, tmp_path: Path) -> None:
    """What nodes would pull has the base's files, the layer's, and the base's environment."""
    async with Publisher(parse_repository(host), tmp_path / "cache") as publisher:
        reference = await publisher.publish(image("busybox"), (str(tree),))
    root = unpack(reference, tmp_path)
    assert (root / "etc" / "added").read_text() == "by the layer\n"
    assert (root / "bin" / "busybox").stat().st_size > 100_000
    assert inspect(reference)["Env"] == ["PATH=/bin"]


async def test_concurrent_callers_share_one_push(host: str, tree: Path, tmp_path: Path) -> None:
    """A hundred of them: each blob is sent once. One that is cancelled takes nothing from the others."""
    steps: list[Step] = []
    async with Publisher(parse_repository(host), tmp_path / "cache", progress=steps.append) as publisher:
        waiting = [asyncio.create_task(publisher.publish(image("busybox"), (str(tree),))) for _ in range(100)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        references = await asyncio.gather(*waiting[1:])
    assert len(set(references)) == 1
    done = [step.part for step in steps if step.done]
    assert len(done) == len(set(done)) == 2


async def test_the_next_publisher_packs_and_sends_nothing(host: str, tree: Path, tmp_path: Path) -> None:
    """The directory is known by its looks and the registry has the rest; a change is seen."""
    steps: list[Step] = []
    repository = parse_repository(host)
    async with Publisher(repository, tmp_path / "cache") as publisher:
        first = await publisher.publish(f"dir:{tree}")
    async with Publisher(repository, tmp_path / "cache", progress=steps.append) as publisher:
        assert await publisher.publish(f"dir:{tree}") == first
    assert steps == []
    (tree / "etc" / "added").write_text("changed\n")
    async with Publisher(repository, tmp_path / "cache") as publisher:
        assert await publisher.publish(f"dir:{tree}") != first


async def test_an_image_alone_keeps_its_digest(host: str, tmp_path: Path) -> None:
    """From an archive as from a folder: it is the same image, under the digest that its maker knows."""
    async with Publisher(parse_repository(host), tmp_path / "cache") as publisher:
        references = {await publisher.publish(archive("static")), await publisher.publish(image("static"))}
    assert len(references) == 1
    layout = Path(image("static").removeprefix("oci:").rpartition("@")[0])
    digest = json.loads((layout / "index.json").read_text())["manifests"][0]["digest"]
    assert references.pop().endswith(f"@{digest}")


async def test_a_daemon_that_the_registry_has_is_not_packed_again(
    host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a provider asks the registry one question; another registry gets it all the same."""
    packed: list[Path] = []

    def packs(binary: Path) -> tuple[Layer, bytes]:
        packed.append(binary)
        return daemon_layer(binary)

    monkeypatch.setattr("sandlot.backends.kubernetes.publishing.publisher.daemon_layer", packs)
    binary = tmp_path / "sandlotd"
    binary.write_bytes(b"\x7fELF" + os.urandom(5000))
    found = []
    for place in (host, host, f"{host}/elsewhere"):
        async with Publisher(parse_repository(place), tmp_path / "cache") as publisher:
            found.append((await publisher.publish_daemon(binary)).rpartition("/")[2])
    assert len(set(found)) == 1
    assert packed == [binary, binary]
    binary.write_bytes(b"\x7fELF" + os.urandom(5000))
    async with Publisher(parse_repository(host), tmp_path / "cache") as publisher:
        assert (await publisher.publish_daemon(binary)).rpartition("/")[2] != found[0]


async def test_the_daemon_is_published(host: str, tmp_path: Path) -> None:
    """One file, executable, byte for byte."""
    async with Publisher(parse_repository(host), tmp_path / "cache") as publisher:
        reference = await publisher.publish_daemon(find_daemon())
    root = unpack(reference, tmp_path)
    assert os.listdir(root) == ["sandlotd"]
    assert (root / "sandlotd").read_bytes() == find_daemon().read_bytes()
    assert os.access(root / "sandlotd", os.X_OK)


async def test_a_directory_that_cannot_be_a_layer_is_the_callers_fault(host: str, tree: Path, tmp_path: Path) -> None:
    """And is looked at again when it is asked for again."""
    (tree / ".wh.x").write_text("")
    async with Publisher(parse_repository(host), tmp_path / "cache") as publisher:
        with pytest.raises(ImageInvalid, match=r"\.wh\.x"):
            await publisher.publish(f"dir:{tree}")
        (tree / ".wh.x").unlink()
        assert await publisher.publish(f"dir:{tree}")


async def test_a_registry_with_passwords_takes_the_right_one(tmp_path: Path) -> None:
    """Basic credentials; without them, or with others, it is `Denied`."""
    line = "me:$2b$05$PALIH.LJEoCoUsC6NB5UOuJicwfwmJP5IyWMLDqGnsYY1L2a9ELKq\n"  # "secret", by bcrypt
    with serve_registry(tmp_path, passwords=line) as address:
        repository = parse_repository(f"{address}/a")
        for stored, right in ((Credentials("me", "secret"), True), (Credentials("me", "wrong"), False), (None, False)):
            async with Registry(repository, lambda _host, stored=stored: stored) as registry:  # type: ignore[misc]
                if right:
                    await registry.check()
                    assert not await registry.has_manifest("x")
                else:
                    with pytest.raises(Denied):
                        await registry.check()


def test_the_command_line_pushes_and_prints_the_reference(host: str, tree: Path, tmp_path: Path) -> None:
    """Alone on standard output, so that a script can use it."""
    command = [sys.executable, "-m", "sandlot.cli.main", "image"]
    environ = {**os.environ, "SANDLOT_CACHE": str(tmp_path / "cache")}
    target = f"{host}/mine:v1"
    pushed = subprocess.run(
        [*command, "push", image("busybox"), target, "--layer", str(tree)], check=True, capture_output=True, env=environ
    )
    reference = pushed.stdout.decode().strip()
    assert reference.startswith(f"{target}@sha256:")
    assert inspect(target)["Digest"] == reference.rpartition("@")[2]
    daemon = subprocess.run([*command, "push-daemon", f"{host}/d", "--json"], check=True, capture_output=True, env=environ)
    assert json.loads(daemon.stdout)["tag"] == f"{host}/d:latest"
    out = tmp_path / "daemon.tar"
    subprocess.run([*command, "build-daemon", str(out)], check=True, capture_output=True, env=environ)
    shown = subprocess.run(["skopeo", "inspect", f"oci-archive:{out}"], check=True, capture_output=True)
    assert json.loads(shown.stdout)["Digest"] == json.loads(daemon.stdout)["digest"]
