"""What `sandlot manifests` prints, put into a cluster as `kubectl apply --server-side` does it, and taken out again."""

from __future__ import annotations

import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from cluster import Cluster
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.api_errors import ApiNotFound
from sandlot.backends.kubernetes.credentials import credentials
from sandlot.backends.kubernetes.objects import Named

_PLURALS: Final = {"NetworkPolicy": "networkpolicies"}
_OF_THE_CLUSTER: Final = ("Namespace", "ClusterRole", "ClusterRoleBinding")


def printed(*options: str) -> str:
    """What the command prints."""
    command = [sys.executable, "-m", "sandlot.cli.main", "manifests", *options]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


class Applied:
    """A namespace that was made from what the command prints."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.namespace = namespace
        self._cluster, self._folder = cluster, folder

    def kubeconfig(self, account: str) -> Path:
        """Of one of its service accounts, with a token from the API server: nothing that the administrator has."""
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{account}/token"
        with self._cluster.api() as api:
            token = api.post(path, {"spec": {"expirationSeconds": 3600}})["status"]["token"]
        config = yaml.safe_load(self._cluster.kubeconfig.read_text())
        config["users"] = [{"name": account, "user": {"token": token}}]
        for one in config["contexts"]:
            one["context"] |= {"user": account, "namespace": self.namespace}
        target = self._folder / f"{account}.yaml"
        target.write_text(yaml.safe_dump(config))
        return target

    async def api(self, account: str) -> Api:
        """A client that is that account; close it."""
        api = await Api.open(credentials(self.kubeconfig(account)))
        await api.request("GET", "/version")
        return api


@asynccontextmanager
async def applied(cluster: Cluster, folder: Path, *options: str) -> AsyncIterator[Applied]:
    """Removed at the end, with what it granted for the cluster. A field that the server does not know is an error."""
    namespace = f"test-{secrets.token_hex(4)}"
    objects = [one for one in yaml.safe_load_all(printed("--namespace", namespace, *options)) if one]
    async with await Api.open(credentials(cluster.kubeconfig)) as api:
        try:
            for one in objects:
                query = {"fieldManager": "test", "fieldValidation": "Strict"}
                kind = "application/apply-patch+yaml"
                await api.request("PATCH", _path(one), body=msgspec.json.encode(one), query=query, content_type=kind)
            yield Applied(cluster, namespace, folder)
        finally:
            for one in reversed(objects):
                try:
                    await api.delete(_path(one), Named)
                except ApiNotFound:
                    continue


def _path(one: dict[str, Any]) -> str:
    group = one["apiVersion"]
    root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
    kind = one["kind"]
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    meta = one["metadata"]
    home = "" if kind in _OF_THE_CLUSTER else f"/namespaces/{meta['namespace']}"
    return f"{root}{home}/{plural}/{meta['name']}"
