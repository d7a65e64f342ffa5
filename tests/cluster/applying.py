"""What `sandlot manifests` prints, put into a cluster as `kubectl apply --server-side` does it, and taken out again."""

from __future__ import annotations

import asyncio
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
from sandlot.backends.kubernetes.objects import Named, Object

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
            await _wait_granted(api, objects)
            yield Applied(cluster, namespace, folder)
        finally:
            for one in reversed(objects):
                try:
                    await api.delete(_path(one), Named)
                except ApiNotFound:
                    continue


async def _wait_granted(api: Api, objects: list[dict[str, Any]]) -> None:
    """Until the API server acts by every role and binding: it learns of them a moment after it has stored them."""
    rules = {(one["kind"], one["metadata"]["name"]): one["rules"] for one in objects if one["kind"].endswith("Role")}
    for one in objects:
        if one["kind"].endswith("Binding"):
            (who,), reference = one["subjects"], one["roleRef"]
            for rule in rules[reference["kind"], reference["name"]]:
                resource, _, subresource = rule["resources"][0].partition("/")
                asked = {
                    "verb": rule["verbs"][0],
                    "group": rule["apiGroups"][0],
                    "resource": resource,
                    "subresource": subresource,
                }
                asked["namespace"] = one["metadata"].get("namespace", who["namespace"])
                asked["name"] = rule.get("resourceNames", [""])[0]
                user = f"system:serviceaccount:{who['namespace']}:{who['name']}"
                body = msgspec.json.encode({"spec": {"user": user, "resourceAttributes": asked}})
                while not (await api.post(_REVIEWS, body, _Review)).status.allowed:  # noqa: ASYNC110 - nothing tells
                    await asyncio.sleep(0.1)


_REVIEWS: Final = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


class _Allowed(Object, frozen=True):
    allowed: bool = False


class _Review(Object, frozen=True):
    status: _Allowed = _Allowed()


def _path(one: dict[str, Any]) -> str:
    group = one["apiVersion"]
    root = f"/api/{group}" if "/" not in group else f"/apis/{group}"
    kind = one["kind"]
    plural = _PLURALS.get(kind, f"{kind.lower()}s")
    meta = one["metadata"]
    home = "" if kind in _OF_THE_CLUSTER else f"/namespaces/{meta['namespace']}"
    return f"{root}{home}/{plural}/{meta['name']}"
