"""Which image of a layout is meant, and what its documents may be."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandlot.images.blobs import Folder, read_document, read_file
from sandlot.images.oci import Config, Descriptor, Index, Manifest, decode, find_manifest, read_config
from sandlot.images.tarstream import Malformed
from tests.unit.images.layouts import INDEX, MANIFEST, Layout, tar

LAYER = tar(("a", b"1"))


def pick(layout: Layout, ref: str = "") -> tuple[Manifest, Config]:
    blobs = Folder(layout.write())
    index = decode(Index, read_file(blobs, "index.json"), "index")

    def read(descriptor: Descriptor) -> bytes:
        return read_document(blobs, descriptor)

    manifest = find_manifest(index, ref, read).manifest
    return manifest, read_config(manifest, read)


def test_the_only_image_needs_no_name(tmp_path: Path) -> None:
    """Its config is read with environment, work folder and user."""
    layout = Layout(tmp_path)
    layout.image([LAYER], config={"Env": ["A=1"], "WorkingDir": "/app", "User": "1000", "Entrypoint": ["/x"]})
    manifest, config = pick(layout)
    assert len(manifest.layers) == 1
    assert config.config is not None
    assert (config.config.env, config.config.working_dir, config.config.user) == (["A=1"], "/app", "1000")


def test_one_of_several_is_found_by_name_or_digest(tmp_path: Path) -> None:
    """Without a name the answer lists those there are."""
    layout = Layout(tmp_path)
    layout.image([LAYER], name="one", config={"User": "1"})
    second = layout.image([LAYER], name="two", config={"User": "2"})
    for ref in ("two", second["digest"]):
        config = pick(layout, ref)[1].config
        assert config is not None
        assert config.user == "2"
    with pytest.raises(Malformed, match="several images, say which with @: one, two"):
        pick(layout)
    with pytest.raises(LookupError, match="no 'three', only one, two"):
        pick(layout, "three")


def test_a_nested_index_is_resolved_by_platform(tmp_path: Path) -> None:
    """Other machines' images and attestations are passed over."""
    layout = Layout(tmp_path)
    layout.image([LAYER], config={"User": "mine"})
    mine = layout.index.pop() | {"platform": {"architecture": "amd64", "os": "linux"}}
    other = layout.blob(b"{}") | {"mediaType": MANIFEST, "platform": {"architecture": "riscv64", "os": "linux"}}
    attestation = layout.blob(b"[]") | {"mediaType": MANIFEST, "platform": {"architecture": "unknown", "os": "unknown"}}
    nested = layout.blob(json.dumps({"manifests": [attestation, other, mine]}).encode()) | {"mediaType": INDEX}
    layout.index.append(nested)
    config = pick(layout)[1].config
    assert config is not None
    assert config.user == "mine"


def test_an_image_for_another_machine_says_so(tmp_path: Path) -> None:
    """By its index or by its config."""
    layout = Layout(tmp_path)
    layout.image([LAYER], architecture="riscv64")
    with pytest.raises(Malformed, match="it is for linux/riscv64"):
        pick(layout)
    layout.index[0]["platform"] = {"architecture": "s390x", "os": "linux"}
    with pytest.raises(Malformed, match="only linux/s390x"):
        pick(layout)


def test_indexes_that_hold_themselves_end(tmp_path: Path) -> None:
    """Nesting has a bound."""
    layout = Layout(tmp_path)
    entry: dict[str, Any] = layout.blob(b'{"manifests": []}') | {"mediaType": INDEX}
    for _ in range(6):
        entry = layout.blob(json.dumps({"manifests": [entry]}).encode()) | {"mediaType": INDEX}
    layout.index.append(entry)
    with pytest.raises(Malformed, match="nested too deeply"):
        pick(layout)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda config: config.pop("rootfs"), "rootfs"),
        (lambda config: config["rootfs"].update(diff_ids=[]), "its config names 0 layers, its manifest 1"),
        (lambda config: config["rootfs"].update(diff_ids=["sha256:../x"]), "is not a digest"),
        (lambda config: config.update(config={"Env": "A=1"}), "Env"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    """The field at fault is named."""
    layout = Layout(tmp_path)
    document: dict[str, Any] = {"architecture": "amd64", "os": "linux", "rootfs": {"diff_ids": ["sha256:" + "0" * 64]}}
    change(document)
    manifest = {"config": layout.blob(json.dumps(document).encode()), "layers": [layout.blob(LAYER)]}
    layout.index.append(layout.blob(json.dumps(manifest).encode()))
    with pytest.raises(Malformed, match=message):
        pick(layout)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b'{"manifests": 1}', b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_index_is_refused(raw: bytes) -> None:
    """Any bytes at all: one sentence, no traceback."""
    with pytest.raises(Malformed, match="its index cannot be read"):
        decode(Index, raw, "index")


def test_more_layers_than_can_be_stacked_are_refused(tmp_path: Path) -> None:
    """The bound of overlay engines."""
    layout = Layout(tmp_path)
    layout.image([LAYER] * 128)
    with pytest.raises(Malformed, match="128 layers"):
        pick(layout)
