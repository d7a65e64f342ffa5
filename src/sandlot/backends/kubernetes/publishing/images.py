"""The documents of an image that is to be published: an image on disk with more layers over it, or layers alone. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from sandlot.backends.kubernetes.publishing.packing import Layer
from sandlot.images import oci

MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
CONFIG: Final = "application/vnd.oci.image.config.v1+json"
LAYER: Final = "application/vnd.oci.image.layer.v1.tar+gzip"
_OCI_LAYERS: Final = {
    "application/vnd.docker.image.rootfs.diff.tar.gzip": LAYER,
    "application/vnd.docker.image.rootfs.diff.tar": "application/vnd.oci.image.layer.v1.tar",
    "": LAYER,
}


@dataclass(frozen=True, slots=True)
class Document:
    """A small blob, whole."""

    raw: bytes
    media_type: str

    @classmethod
    def of(cls, value: dict[str, Any], media_type: str) -> Document:
        """A document with the same bytes for the same value."""
        return cls(msgspec.json.encode(value, order="sorted"), media_type)

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.raw).hexdigest()}"

    def descriptor(self) -> dict[str, object]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.raw)}


@dataclass(frozen=True, slots=True)
class Composed:
    """An image ready to be pushed, its layers' bytes aside."""

    manifest: Document
    config: Document

    @property
    def tag(self) -> str:
        """Names the image by its content: what is under it never changes, and a registry does not collect it."""
        return self.manifest.digest.replace(":", "-")


def as_stored(found: oci.Found, config: bytes) -> Composed:
    """An image as it is: its digest stays what it was."""
    told = msgspec.json.decode(found.raw, type=_Typed).media_type
    return Composed(Document(found.raw, told or found.media_type or MANIFEST), Document(config, CONFIG))


class _Typed(msgspec.Struct, frozen=True, rename="camel"):
    media_type: str = ""


def compose(
    layers: Sequence[Layer],
    *,
    base: tuple[oci.Manifest, bytes] | None = None,
    run: Mapping[str, object] | None = None,
) -> Composed:
    """An image of `layers`, lowest first, over the base (its manifest and the bytes of its config) if there is one.

    Everything the base's config says stays: environment, user, working directory, and what Sandlot never reads. `run` is
    that part of an image without a base, in the words of the OCI image configuration (`Env`, `WorkingDir`, `User`, ...).
    """
    config: dict[str, Any] = {} if base is None else msgspec.json.decode(base[1])
    config.setdefault("architecture", oci.machine())
    config.setdefault("os", "linux")
    if run:
        config["config"] = dict(run)
    below = config.get("rootfs") or {}
    config["rootfs"] = {"type": "layers", "diff_ids": [*below.get("diff_ids", []), *(layer.diff_id for layer in layers)]}
    if "history" in config:
        config["history"] = [*config["history"], *({"created_by": "sandlot: a directory laid over the image"} for _ in layers)]
    document = Document.of(config, CONFIG)
    stack = [] if base is None else [_base_layer(layer) for layer in base[0].layers]
    stack += [{"mediaType": LAYER, "digest": layer.digest, "size": layer.size} for layer in layers]
    manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": document.descriptor(), "layers": stack}
    return Composed(Document.of(manifest, MANIFEST), document)


def _base_layer(layer: oci.Descriptor) -> dict[str, object]:
    kind = _OCI_LAYERS.get(layer.media_type, layer.media_type)
    return {"mediaType": kind, "digest": layer.digest, "size": layer.size}
