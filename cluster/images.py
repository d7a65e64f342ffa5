"""Makes small images as OCI layouts on disk: one layer of given files."""

import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

INDEX = "application/vnd.oci.image.index.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"


def make(
    top: Path, files: Mapping[str, Path | bytes], *, command: Sequence[str] = (), links: Mapping[str, str] | None = None
) -> Path:
    """Write a layout into the new directory `top` and return it.

    Args:
        files: path inside the image, and the file on this machine that has its content, or the content. All executable.
        command: the image's entry point; empty for one that is only mounted.
        links: symbolic links: path inside the image, and target.
    """
    blobs = top / "blobs" / "sha256"
    blobs.mkdir(parents=True)
    layer = _keep(blobs, _layer(files, links or {}), _LAYER)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(command), "Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": _keep(blobs, _json(config), _CONFIG),
        "layers": [layer],
    }
    index = {"schemaVersion": 2, "mediaType": INDEX, "manifests": [_keep(blobs, _json(manifest), MANIFEST)]}
    (top / "index.json").write_bytes(_json(index))
    (top / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
    return top


def archive(layout: Path, name: str, target: Path) -> Path:
    """Pack a layout as one file that containerd imports under `name`."""
    index = json.loads((layout / "index.json").read_bytes())
    for one in index["manifests"]:
        one.setdefault("annotations", {})["io.containerd.image.name"] = name
    with tarfile.open(target, "w") as packed:
        packed.add(layout / "blobs", "blobs")
        packed.add(layout / "oci-layout", "oci-layout")
        _add(packed, "index.json", _json(index), 0o644)
    return target


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _keep(blobs: Path, content: bytes, kind: str) -> dict[str, Any]:
    digest = hashlib.sha256(content).hexdigest()
    (blobs / digest).write_bytes(content)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(content)}


def _layer(files: Mapping[str, Path | bytes], links: Mapping[str, str]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=tarfile.PAX_FORMAT) as packed:
        for folder in sorted({str(parent) for name in [*files, *links] for parent in Path(name).parents} - {".", "/"}):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            packed.addfile(entry)
        for name, source in sorted(files.items()):
            _add(packed, name, source if isinstance(source, bytes) else source.read_bytes(), 0o755)
        for name, target in sorted(links.items()):
            entry = tarfile.TarInfo(name)
            entry.type, entry.linkname = tarfile.SYMTYPE, target
            packed.addfile(entry)
    return content.getvalue()


def _add(packed: tarfile.TarFile, name: str, content: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), mode
    packed.addfile(entry, io.BytesIO(content))
