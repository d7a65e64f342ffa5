"""Images as OCI archives: what skopeo, podman, docker and `ctr image import` read, and Sandlot itself."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO, Final

from sandlot.backends.kubernetes.publishing.images import Composed, Document, compose
from sandlot.backends.kubernetes.publishing.packing import Packer
from sandlot.errors import WriteFailed

_REF_NAME: Final = "org.opencontainers.image.ref.name"
_CONTAINERD_NAME: Final = "io.containerd.image.name"  # what `ctr image import` calls the image
_INDEX: Final = "application/vnd.oci.image.index.v1+json"


def write_directory_archive(directory: Path, target: Path, packer: Packer, *, run: Mapping[str, object], tag: str) -> str:
    """Write an image of one directory; its digest. Blocks.

    Raises:
        ImageInvalid: the directory cannot become a layer.
        WriteFailed: no room for it in the cache, or the target cannot be written.
    """
    with packer.pack(directory) as packed, open(packed.file, "rb") as file:
        composed = compose([packed.layer], run=run)
        write_archive(target, composed, {packed.layer.digest: file}, tag=tag)
    return composed.manifest.digest


def write_archive(target: Path, composed: Composed, layers: Mapping[str, BinaryIO], *, tag: str) -> None:
    """Write an image with these layers, by digest. The file appears whole or not at all.

    Raises:
        WriteFailed: it cannot be written.
    """
    part = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        try:
            with tarfile.open(part, mode="w", format=tarfile.PAX_FORMAT) as tar:
                for name, file in _files(composed, layers, tag):
                    info = tarfile.TarInfo(name)
                    info.size, info.mode = file.seek(0, io.SEEK_END), 0o644
                    file.seek(0)
                    tar.addfile(info, file)
            part.rename(target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise WriteFailed.from_os(error, target) from error


def _files(composed: Composed, layers: Mapping[str, BinaryIO], tag: str) -> list[tuple[str, BinaryIO]]:
    """The files of an OCI image layout, in a stable order."""
    entry = composed.manifest.descriptor() | {"annotations": {_REF_NAME: tag.rpartition(":")[2], _CONTAINERD_NAME: tag}}
    index = Document.of({"schemaVersion": 2, "manifests": [entry]}, _INDEX)
    blobs: dict[str, BinaryIO] = {one.digest: io.BytesIO(one.raw) for one in (composed.manifest, composed.config)}
    blobs |= layers
    files: list[tuple[str, BinaryIO]] = [("oci-layout", io.BytesIO(b'{"imageLayoutVersion":"1.0.0"}'))]
    files.append(("index.json", io.BytesIO(index.raw)))
    return files + [(f"blobs/{digest.replace(':', '/')}", blobs[digest]) for digest in sorted(blobs)]
