"""The image that delivers the daemon: one layer with one static file, byte for byte the same for the same daemon."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sandlot.backends.kubernetes.publishing.images import Composed, Document, compose
from sandlot.backends.kubernetes.publishing.packing import Layer
from sandlot.errors import WriteFailed

NAME: Final = "sandlotd"
_BEST: Final = 9  # a few megabytes, packed once
_REF_NAME: Final = "org.opencontainers.image.ref.name"
_CONTAINERD_NAME: Final = "io.containerd.image.name"  # what `ctr image import` calls the image


def daemon_layer(binary: Path) -> tuple[Layer, bytes]:
    """The layer that holds the binary as `/sandlotd`, and its compressed bytes. Blocks."""
    data = binary.read_bytes()
    info = tarfile.TarInfo(NAME)
    info.size, info.mode = len(data), 0o755
    plain = _tar([(info, data)])
    packed = gzip.compress(plain, _BEST, mtime=0)
    return Layer(_digest(packed), len(packed), _digest(plain)), packed


def write_daemon_archive(binary: Path, target: Path, *, tag: str = "sandlot/daemon:latest") -> str:
    """Write the image as an OCI archive that skopeo, podman, docker and `ctr image import` read; its digest. Blocks.

    Raises:
        WriteFailed: the target cannot be written.
    """
    layer, packed = daemon_layer(binary)
    composed = compose([layer], entrypoint=(f"/{NAME}",))
    archive = _tar(list(_layout(composed, {layer.digest: packed}, tag)))
    part = target.with_name(f".{target.name}.part")
    try:
        part.write_bytes(archive)
        part.rename(target)
    except OSError as error:
        raise WriteFailed.from_os(error, target) from error
    return composed.manifest.digest


def _layout(composed: Composed, blobs: Mapping[str, bytes], tag: str) -> list[tuple[tarfile.TarInfo, bytes]]:
    """The files of an OCI image layout."""
    entry = composed.manifest.descriptor() | {"annotations": {_REF_NAME: tag.rpartition(":")[2], _CONTAINERD_NAME: tag}}
    index = Document.of({"schemaVersion": 2, "manifests": [entry]}, "application/vnd.oci.image.index.v1+json")
    documents = {one.digest: one.raw for one in (composed.manifest, composed.config)}
    files = {"oci-layout": b'{"imageLayoutVersion":"1.0.0"}', "index.json": index.raw}
    files |= {f"blobs/{digest.replace(':', '/')}": raw for digest, raw in sorted((documents | dict(blobs)).items())}
    members = []
    for name, raw in files.items():
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(raw), 0o644
        members.append((info, raw))
    return members


def _tar(members: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for info, data in members:
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
