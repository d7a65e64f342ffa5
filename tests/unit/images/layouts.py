"""OCI layouts for the tests, made byte by byte so that each byte can be wrong."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"


def digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def tar(*members: tuple[str, bytes | None]) -> bytes:
    """A layer: files by name and content; None makes a directory."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            info.mode = 0o755 if content is None else 0o644
            info.size = len(content or b"")
            archive.addfile(info, io.BytesIO(content or b""))
    return buffer.getvalue()


PACK: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "gzip": lambda raw: gzip.compress(raw, 1, mtime=0),
    "zstd": zstandard.compress,
}


@dataclass
class Layout:
    """A layout folder; `index` may be changed before `write`."""

    folder: Path
    index: list[dict[str, Any]] = field(default_factory=list)

    def blob(self, data: bytes) -> dict[str, Any]:
        path = self.folder / "blobs" / "sha256" / digest(data)[7:]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return {"digest": digest(data), "size": len(data)}

    def image(self, layers: list[bytes], *, pack: str = "gzip", name: str = "", **config: Any) -> dict[str, Any]:
        """Add an image; keywords are fields of its config."""
        described = [self.blob(PACK[pack](layer)) for layer in layers]
        document = {
            "architecture": "amd64",
            "os": "linux",
            "rootfs": {"diff_ids": [digest(layer) for layer in layers]},
        } | config
        manifest = {"config": self.blob(json.dumps(document).encode()), "layers": described}
        entry = self.blob(json.dumps(manifest).encode()) | {"mediaType": MANIFEST}
        if name:
            entry["annotations"] = {"org.opencontainers.image.ref.name": name}
        self.index.append(entry)
        return entry

    def write(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (self.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": self.index}))
        return self.folder


def archive(folder: Path, target: Path) -> Path:
    with tarfile.open(target, "w") as packed:
        packed.add(folder, arcname=".")
    return target
