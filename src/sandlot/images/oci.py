"""The documents of an OCI image (index, manifest, config), decoded into only the fields that are used.

Format: OCI Image Format Specification 1.1; Docker's media types are taken as the same thing.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec

from sandlot.images.tarstream import Malformed

MAX_DOCUMENT_BYTES: Final = 4_194_304  # what registries accept as a manifest
MAX_LAYERS: Final = 127  # what the common builders and overlayfs-based engines stop at
_REF_NAME: Final = "org.opencontainers.image.ref.name"
_INDEXES: Final = ("application/vnd.oci.image.index.v1+json", "application/vnd.docker.distribution.manifest.list.v2+json")
_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_DIGEST: Final = re.compile(r"(sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128})\Z")
_MAX_INDEX_DEPTH: Final = 3


class Platform(msgspec.Struct, frozen=True):
    architecture: str = ""
    os: str = ""


class Descriptor(msgspec.Struct, frozen=True, rename="camel"):
    """A pointer to a blob: what it is, its digest and its size."""

    digest: str
    size: int = -1
    media_type: str = ""
    platform: Platform | None = None
    annotations: dict[str, str] | None = None

    @property
    def is_index(self) -> bool:
        return self.media_type in _INDEXES

    @property
    def name(self) -> str:
        return (self.annotations or {}).get(_REF_NAME, "")


class Index(msgspec.Struct, frozen=True):
    manifests: list[Descriptor] = []


class Manifest(msgspec.Struct, frozen=True):
    config: Descriptor
    layers: list[Descriptor] = []


class RunConfig(msgspec.Struct, frozen=True, rename="pascal"):
    """What the image says of how its processes run. An entry point is not read: the daemon takes its place."""

    env: list[str] | None = None
    working_dir: str | None = None
    user: str | None = None


class RootFs(msgspec.Struct, frozen=True):
    diff_ids: list[str] = []


class Config(msgspec.Struct, frozen=True):
    rootfs: RootFs
    config: RunConfig | None = None
    architecture: str = ""
    os: str = ""


ReadDocument = Callable[[Descriptor], bytes]
"""The verified bytes of a small blob."""

_T = TypeVar("_T")


def decode(kind: type[_T], raw: bytes, what: str) -> _T:
    """One document.

    Raises:
        Malformed: it is not JSON, or a field has a wrong type; the text names the field.
    """
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Malformed(f"its {what} cannot be read: {error}") from error


def checked_digest(digest: str) -> str:
    """The digest, when it is one: it becomes part of a path.

    Raises:
        Malformed: not sha256 or sha512 in lower-case hexadecimal.
    """
    if _DIGEST.match(digest) is None:
        raise Malformed(f"{digest[:80]!r} is not a digest")
    return digest


@dataclass(frozen=True, slots=True)
class Found:
    """The manifest of one image."""

    manifest: Manifest
    raw: bytes
    """As it is stored: what its digest covers."""
    media_type: str
    """As what points to it says; may be empty."""


def find_manifest(index: Index, ref: str, read: ReadDocument) -> Found:
    """The manifest that `ref` names, for this machine.

    Raises:
        LookupError: no image of that name; the text lists the names there are.
        Malformed: several images and no name given, none for this machine, or a document that cannot be read.
    """
    found = index.manifests
    if ref:
        found = [item for item in found if ref in (item.name, item.digest)]
        if not found:
            names = sorted({item.name or item.digest for item in index.manifests})
            raise LookupError(f"it holds no {ref!r}, only {', '.join(names) or 'nothing'}")
    return _descend(found, read, depth=0)


def _descend(found: list[Descriptor], read: ReadDocument, *, depth: int) -> Found:
    if depth > _MAX_INDEX_DEPTH:
        raise Malformed("its indexes are nested too deeply")
    fitting = [item for item in found if _fits(item.platform)]
    if not fitting:
        others = sorted({f"{item.platform.os}/{item.platform.architecture}" for item in found if item.platform})
        raise Malformed(f"it holds no image for linux/{machine()}" + (f", only {', '.join(others)}" if others else ""))
    distinct = {item.digest for item in fitting}
    if len(distinct) > 1:
        names = sorted(item.name or item.digest for item in fitting)
        raise Malformed(f"it holds several images, say which with @: {', '.join(names)}")
    chosen = fitting[0]
    raw = read(chosen)
    if chosen.is_index or (not chosen.media_type and b'"manifests"' in raw):
        return _descend(decode(Index, raw, "index").manifests, read, depth=depth + 1)
    manifest = decode(Manifest, raw, "manifest")
    if len(manifest.layers) > MAX_LAYERS:
        raise Malformed(f"it has {len(manifest.layers)} layers; at most {MAX_LAYERS} can be stacked")
    return Found(manifest, raw, chosen.media_type)


def _fits(wanted: Platform | None) -> bool:
    return wanted is None or (wanted.os in ("", "linux") and wanted.architecture in ("", machine()))


def machine() -> str:
    """This machine's architecture, as images name it."""
    return _MACHINES.get(platform.machine(), platform.machine())


def read_config(manifest: Manifest, read: ReadDocument) -> Config:
    """The image's config, checked against its manifest and this machine.

    Raises:
        Malformed: unreadable, for another machine, or not one diff id a layer.
    """
    config = decode(Config, read(manifest.config), "config")
    if not _fits(Platform(architecture=config.architecture, os=config.os)):
        raise Malformed(f"it is for {config.os}/{config.architecture}, this machine is linux/{machine()}")
    if len(config.rootfs.diff_ids) != len(manifest.layers):
        raise Malformed(f"its config names {len(config.rootfs.diff_ids)} layers, its manifest {len(manifest.layers)}")
    for digest in config.rootfs.diff_ids:
        checked_digest(digest)
    return config
