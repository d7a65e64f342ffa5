"""What `sandlot manifests` prints, applied to a real cluster, and acted upon with exactly those rights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster import Cluster
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.api_errors import ApiDenied
from sandlot.backends.kubernetes.leases import ClientLease
from sandlot.backends.kubernetes.manifests import CLIENT, REAPER
from sandlot.backends.kubernetes.preflight import gather
from sandlot.backends.kubernetes.reaper import Reaped, Reaper
from sandlot.backends.kubernetes.rights import Purpose, granted
from sandlot.backends.kubernetes.survey import survey
from tests.cluster.applying import applied

EVERYBODY = {
    ("authentication.k8s.io", "selfsubjectreviews", "create"),
    ("authorization.k8s.io", "selfsubjectaccessreviews", "create"),
    ("authorization.k8s.io", "selfsubjectrulesreviews", "create"),
}
"""What every authenticated client may do in any cluster (bootstrap policy `system:basic-user`)."""


async def may(api: Api, namespace: str) -> set[tuple[str, str, str]]:
    """(group, resource, verb) of everything that these credentials may do in the namespace, as the API server says it."""
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectRulesReview", "spec": {"namespace": namespace}}
    raw = await api.request("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", body=msgspec.json.encode(body))
    rules: list[dict[str, Any]] = msgspec.json.decode(raw)["status"]["resourceRules"]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    } - EVERYBODY


def expected(*purposes: Purpose) -> set[tuple[str, str, str]]:
    """The table of rights, as triples."""
    rights = [*granted(purposes, "namespace"), *granted(purposes, "cluster")]
    return {(right.group, right.resource, verb) for right in rights for verb in right.verbs}


@pytest.mark.parametrize(
    ("options", "purposes"),
    [
        ((), ("sandboxes",)),
        (("--exec-bridge",), ("sandboxes", "exec-bridge")),
        (("--looking", "--policies"), ("sandboxes", "looking")),
    ],
)
async def test_a_client_may_do_what_the_table_says_and_nothing_else(
    cluster: Cluster, tmp_path: Path, options: tuple[str, ...], purposes: tuple[Purpose, ...]
) -> None:
    """In its namespace; nothing at all in another. No secret can be read in either."""
    async with applied(cluster, tmp_path, *options) as made, await made.api(CLIENT) as api:
        assert await may(api, made.namespace) == expected(*purposes)
        elsewhere = {(right.group, right.resource, verb) for right in granted(purposes, "cluster") for verb in right.verbs}
        assert await may(api, "kube-system") == elsewhere
        for path in (f"/api/v1/namespaces/{made.namespace}/secrets", "/api/v1/secrets", "/api/v1/namespaces/default/pods"):
            if ("", path.rpartition("/")[2], "list") not in elsewhere:
                with pytest.raises(ApiDenied):
                    await api.request("GET", path)


async def test_preflight_finds_no_right_missing_that_was_granted(cluster: Cluster, tmp_path: Path) -> None:
    """And names each that was not."""
    async with applied(cluster, tmp_path) as made, await made.api(CLIENT) as api:
        facts = await gather(api, made.namespace)
    lacking = {right.purpose for right, verbs in facts.rights.items() if verbs}
    assert lacking == {"exec-bridge", "looking"}
    assert facts.nodes is None
    assert facts.quotas is None
    async with applied(cluster, tmp_path, "--exec-bridge", "--looking") as made, await made.api(CLIENT) as api:
        facts = await gather(api, made.namespace)
    assert not any(facts.rights.values())
    assert facts.namespace_labels is not None
    assert facts.namespace_labels["pod-security.kubernetes.io/enforce"] == "baseline"
    assert facts.registry == cluster.registry
    assert facts.nodes is not None


async def test_a_client_lives_and_is_surveyed_with_these_rights_alone(cluster: Cluster, tmp_path: Path) -> None:
    """Its lease is made, renewed, seen and removed."""
    async with applied(cluster, tmp_path) as made, await made.api(CLIENT) as api:
        lease = ClientLease(api, made.namespace, "0badcafe", lease_s=60, renew_s=10)
        await lease.acquire()
        seen = await survey(api, made.namespace)
        assert [(one.id, one.alive) for one in seen.clients] == [("0badcafe", True)]
        await lease.release()
        assert (await survey(api, made.namespace)).clients == ()


async def test_the_reaper_removes_with_its_rights_alone(cluster: Cluster, tmp_path: Path) -> None:
    """A pod whose client has no lease; the reaper can make none itself."""
    async with applied(cluster, tmp_path, "--reaper", "registry.invalid/reaper") as made:
        with cluster.api() as admin:
            labels = {"sandlot.dev/kind": "sandbox", "sandlot.dev/client": "deadbeef", "sandlot.dev/owner": "attached"}
            body = {
                "metadata": {"name": "left", "labels": labels},
                "spec": {"containers": [{"name": "task", "image": "none"}], "nodeSelector": {"no": "where"}},
            }
            admin.post(f"/api/v1/namespaces/{made.namespace}/pods", body)
        async with await made.api(REAPER) as api:
            assert await may(api, made.namespace) == expected("reaper")
            assert await Reaper(api, made.namespace).sweep() == Reaped(sandboxes=("left",))
            with pytest.raises(ApiDenied):
                await api.request("POST", f"/api/v1/namespaces/{made.namespace}/pods", body=msgspec.json.encode(body))
        with cluster.api() as admin:
            assert not admin.exists(f"/api/v1/namespaces/{made.namespace}/pods/left")


async def test_the_namespace_refuses_what_its_level_forbids(cluster: Cluster, tmp_path: Path) -> None:
    """A pod on the host's network, which `baseline` has not; an ordinary one is taken."""
    async with applied(cluster, tmp_path) as made, await made.api(CLIENT) as api:
        path = f"/api/v1/namespaces/{made.namespace}/pods?dryRun=All"
        pod: dict[str, Any] = {
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"},
            "spec": {"containers": [{"name": "task", "image": "none"}], "hostNetwork": True},
        }  # fmt: skip
        with pytest.raises(ApiDenied, match="PodSecurity"):
            await api.request("POST", path, body=msgspec.json.encode(pod))
        del pod["spec"]["hostNetwork"]
        await api.request("POST", path, body=msgspec.json.encode(pod))
