"""Documents of published images, what a cluster says of its registry, and what needs publishing."""

from __future__ import annotations

import hashlib
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest

from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.api_errors import ApiDenied, ApiNotFound
from sandlot.backends.kubernetes.images import PublishedImages
from sandlot.backends.kubernetes.publishing.advertised import Advertised, parse_hosting
from sandlot.backends.kubernetes.publishing.daemon import write_daemon_archive
from sandlot.backends.kubernetes.publishing.images import compose
from sandlot.backends.kubernetes.publishing.packing import Layer
from sandlot.backends.kubernetes.publishing.publisher import is_published
from sandlot.errors import BadRequest, SandlotError, Unsupported, WriteFailed
from sandlot.images.blobs import blob_name
from sandlot.images.layout import read_image
from sandlot.images.oci import Descriptor, Manifest
from sandlot.images.reference import parse


@dataclass
class Refusing:
    """An API server that answers every read with this error."""

    error: SandlotError

    async def get(self, path: str, shape: type[object]) -> object:
        raise self.error


LAYER = Layer("sha256:" + "1" * 64, 10, "sha256:" + "2" * 64)


def test_the_base_says_what_it_said() -> None:
    """Its config stays, also what is never read here; layers and diff ids grow at their ends."""
    config = {
        "architecture": "amd64", "os": "linux", "config": {"Env": ["A=1"], "Healthcheck": {"x": 1}},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + "3" * 64]}, "history": [{"created_by": "x"}],
    }  # fmt: skip
    docker = "application/vnd.docker.image.rootfs.diff.tar.gzip"
    base = Manifest(config=Descriptor("sha256:" + "4" * 64), layers=[Descriptor("sha256:" + "5" * 64, 7, docker)])
    composed = compose([LAYER], base=(base, json.dumps(config).encode()))
    said = json.loads(composed.config.raw)
    assert said["config"] == config["config"]
    assert said["rootfs"]["diff_ids"] == ["sha256:" + "3" * 64, LAYER.diff_id]
    assert len(said["history"]) == 2
    manifest = json.loads(composed.manifest.raw)
    assert [layer["digest"] for layer in manifest["layers"]] == ["sha256:" + "5" * 64, LAYER.digest]
    assert {layer["mediaType"] for layer in manifest["layers"]} == {"application/vnd.oci.image.layer.v1.tar+gzip"}
    assert manifest["config"]["digest"] == f"sha256:{hashlib.sha256(composed.config.raw).hexdigest()}"


def test_the_tag_is_the_content() -> None:
    """The same layers have the same tag, others another."""
    other = Layer("sha256:" + "6" * 64, 10, "sha256:" + "7" * 64)
    assert compose([LAYER]).tag == compose([LAYER]).tag != compose([other]).tag


@pytest.mark.parametrize("image", ["python:3.12", "a.b/c@sha256:" + "0" * 64, "localhost:5000/x"])
def test_an_image_of_a_registry_is_published_unless_something_lies_over_it(image: str) -> None:
    """Nodes pull it as it is."""
    assert is_published(image)
    assert not is_published(image, ("/layer",))


@pytest.mark.parametrize("image", ["dir:/x", "oci:/x@y", "oci-archive:/x.tar", "/x", "./x", "../x"])
def test_what_lies_on_this_machine_is_not_published(image: str) -> None:
    """Whether it exists is another question."""
    assert not is_published(image)


def test_the_host_is_no_image() -> None:
    """The local backend's own; the answer says what to use instead."""
    with pytest.raises(BadRequest, match="no node has"):
        is_published("host")


async def test_a_registry_that_may_not_be_read_is_told_from_none(tmp_path: Path) -> None:
    """Without the right to look, it is said that there may be one, and which option grants it."""
    images = PublishedImages(None, tmp_path)
    await images.start(cast(Api, Refusing(ApiDenied("GET ...: configmaps is forbidden"))))
    with pytest.raises(Unsupported, match=r"may not be read .*--looking"):
        await images.daemon()


async def test_a_cluster_that_advertises_no_registry_is_asked_for_one(tmp_path: Path) -> None:
    """The message speaks of no right, since none is missing."""
    images = PublishedImages(None, tmp_path)
    await images.start(cast(Api, Refusing(ApiNotFound("GET ...: not found"))))
    with pytest.raises(Unsupported, match=r"nodes pull from \(say registry="):
        await images.daemon()


def test_a_cluster_says_where_its_registry_is() -> None:
    """Nodes may know it by another name than clients."""
    assert parse_hosting('host: "127.0.0.1:5000"\nhelp: "x"\n') == Advertised("127.0.0.1:5000", "127.0.0.1:5000")
    inner = parse_hosting('host: "localhost:5000"\nhostFromContainerRuntime: "registry:5000"')
    assert inner == Advertised("localhost:5000", "registry:5000")


@pytest.mark.parametrize("text", ["", "help: x", "- a", "host: [1]", "{", "!!python/object:os.system {}"])
def test_a_hosting_that_says_nothing_useful_is_refused(text: str) -> None:
    """With what to do instead."""
    with pytest.raises(BadRequest, match="--registry"):
        parse_hosting(text)


def test_the_daemons_image_is_reproducible_and_holds_one_file(tmp_path: Path) -> None:
    """Read back by the product's own reader; the same binary gives the same bytes."""
    binary = tmp_path / "other-name"
    binary.write_bytes(b"\x7fELF" + b"x" * 5000)
    one, two = tmp_path / "1.tar", tmp_path / "2.tar"
    assert write_daemon_archive(binary, one) == write_daemon_archive(binary, two)
    assert one.read_bytes() == two.read_bytes()
    documents = read_image(parse(f"oci-archive:{one}"))
    assert len(documents.manifest.layers) == 1
    blob = blob_name(documents.manifest.layers[0].digest)
    with documents.blobs.open(blob) as file, tarfile.open(fileobj=file, mode="r|gz") as tar:
        assert [(member.name, member.mode, member.uid) for member in tar] == [("sandlotd", 0o755, 0)]


def test_an_archive_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """A disk's fault is not an image's."""
    binary = tmp_path / "d"
    binary.write_bytes(b"x")
    with pytest.raises(WriteFailed):
        write_daemon_archive(binary, tmp_path / "missing" / "out.tar")
