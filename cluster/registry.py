"""Puts images into the cluster's registry: the distribution protocol's upload, from an OCI layout on disk."""

import http.client
import json
from pathlib import Path
from urllib.parse import urlsplit

from cluster.images import INDEX

_CREATED, _ACCEPTED, _OK = 201, 202, 200


class RegistryError(Exception):
    """The registry answered an upload with something else than success."""


def push(registry: str, layout: Path, name: str) -> str:
    """Upload the one image of `layout` as `name` (such as `tools/busybox:1`); its full name, with the registry at its head.

    Raises:
        RegistryError: the registry refused it.
        OSError: it cannot be reached.
    """
    repository, _, tag = name.partition(":")
    manifest = json.loads((layout / "index.json").read_bytes())["manifests"][0]
    if manifest["mediaType"] == INDEX:
        raise RegistryError(f"{layout} holds an index for several platforms; push one platform's image")
    content = _blob(layout, manifest["digest"]).read_bytes()
    connection = http.client.HTTPConnection(registry, timeout=60.0)
    try:
        parts = json.loads(content)
        for one in [parts["config"], *parts["layers"]]:
            _upload(connection, repository, one["digest"], _blob(layout, one["digest"]))
        where = f"/v2/{repository}/manifests/{tag or 'latest'}"
        connection.request("PUT", where, content, {"Content-Type": manifest["mediaType"]})
        _expect(connection, _CREATED)
    finally:
        connection.close()
    return f"{registry}/{repository}:{tag or 'latest'}"


def _blob(layout: Path, digest: str) -> Path:
    return layout / "blobs" / digest.replace(":", "/")


def _upload(connection: http.client.HTTPConnection, repository: str, digest: str, path: Path) -> None:
    connection.request("HEAD", f"/v2/{repository}/blobs/{digest}")
    answer = connection.getresponse()
    answer.read()
    if answer.status == _OK:
        return
    connection.request("POST", f"/v2/{repository}/blobs/uploads/")
    started = urlsplit(_expect(connection, _ACCEPTED))
    query = f"{started.query}&" if started.query else ""
    with path.open("rb") as content:
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(path.stat().st_size)}
        connection.request("PUT", f"{started.path}?{query}digest={digest}", content, headers)
        _expect(connection, _CREATED)


def _expect(connection: http.client.HTTPConnection, status: int) -> str:
    """The answer's `Location`."""
    answer = connection.getresponse()
    content = answer.read()
    if answer.status != status:
        raise RegistryError(f"{answer.status} instead of {status}: {content[:500].decode(errors='replace')}")
    return answer.headers.get("Location", "")
