"""Write an OCI image layout from directories: what the tests feed to the product's own reader."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """The part of an image's configuration that a runtime looks at."""

    env: Sequence[str] = ()
    workdir: str = ""
    user: str = ""
    entrypoint: Sequence[str] = ()
    cmd: Sequence[str] = ()

    def document(self) -> dict[str, object]:
        found: dict[str, object] = {"Env": list(self.env)}
        if self.workdir:
            found["WorkingDir"] = self.workdir
        if self.user:
            found["User"] = self.user
        if self.entrypoint:
            found["Entrypoint"] = list(self.entrypoint)
        if self.cmd:
            found["Cmd"] = list(self.cmd)
        return found


@dataclass(slots=True)
class Layout:
    """An OCI layout folder that grows blob by blob."""

    folder: Path
    manifests: list[dict[str, object]] = field(default_factory=list)

    def blob(self, data: bytes, media_type: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        target = self.folder / "blobs" / "sha256" / digest
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def image(self, tag: str, layers: Sequence[bytes], config: ImageConfig) -> None:
        """Add one image made of uncompressed tar layers, stored gzipped."""
        descriptors = [self.blob(gzip.compress(tar, 1, mtime=0), f"{LAYER}+gzip") for tar in layers]
        document = {
            "architecture": "amd64",
            "os": "linux",
            "config": config.document(),
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(tar).hexdigest()}" for tar in layers]},
        }
        described = self.blob(json.dumps(document).encode(), CONFIG)
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": described, "layers": descriptors}
        entry = self.blob(json.dumps(manifest).encode(), MANIFEST)
        entry["annotations"] = {"org.opencontainers.image.ref.name": tag}
        self.manifests.append(entry)
        (self.folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (self.folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": self.manifests}))


def tar_of(folder: Path) -> bytes:
    """The whole tree as a tar with numeric owners, links and modes as they are."""
    command = ["tar", "-C", str(folder), "--numeric-owner", "--xattrs", "--one-file-system", "-cf", "-", "."]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout


def archive_of(layout: Path, target: Path) -> None:
    """Pack a layout folder into one archive file."""
    subprocess.run(["tar", "-C", str(layout), "-cf", str(target), "."], check=True)
