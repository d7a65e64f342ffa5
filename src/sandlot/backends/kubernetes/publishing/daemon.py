"""The image that delivers the daemon: one layer with one static file, byte for byte the same for the same daemon."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from pathlib import Path
from typing import Final

from sandlot.backends.kubernetes.publishing.archives import write_archive
from sandlot.backends.kubernetes.publishing.images import compose
from sandlot.backends.kubernetes.publishing.packing import Layer

NAME: Final = "sandlotd"
RUN: Final = {"Entrypoint": [f"/{NAME}"]}
"""What the image's configuration says of how it runs."""
_BEST: Final = 9  # a few megabytes, packed once


def daemon_state(binary: Path) -> str:
    """What tells this daemon from any other, in hex digits: under it its layer is remembered. Blocks.

    Packing takes seconds, so it is done once a registry and not each time a provider opens.
    """
    return hashlib.sha256(b"daemon\n" + binary.read_bytes()).hexdigest()


def daemon_layer(binary: Path) -> tuple[Layer, bytes]:
    """The layer that holds the binary as `/sandlotd`, and its compressed bytes. Blocks."""
    data = binary.read_bytes()
    info = tarfile.TarInfo(NAME)
    info.size, info.mode = len(data), 0o755
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(info, io.BytesIO(data))
    packed = gzip.compress(out.getvalue(), _BEST, mtime=0)
    return Layer(_digest(packed), len(packed), _digest(out.getvalue())), packed


def write_daemon_archive(binary: Path, target: Path, *, tag: str = "sandlot/daemon:latest") -> str:
    """Write the image as an OCI archive; its digest. Blocks. Raises as `write_archive`."""
    layer, packed = daemon_layer(binary)
    composed = compose([layer], run=RUN)
    write_archive(target, composed, {layer.digest: io.BytesIO(packed)}, tag=tag)
    return composed.manifest.digest


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
