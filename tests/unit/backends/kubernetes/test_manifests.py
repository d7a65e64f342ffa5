"""The objects that `sandlot manifests` prints."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from sandlot.backends.kubernetes.manifests import CLIENT_LABEL, ManifestOptions, as_yaml, manifests
from sandlot.backends.kubernetes.options import LISTEN_PORT
from sandlot.errors import BadRequest


def made(**options: Any) -> dict[tuple[str, str], dict[str, Any]]:
    """What comes out of the text, by kind and name."""
    found = yaml.safe_load_all(as_yaml(manifests(ManifestOptions(namespace="rl", **options))))
    return {(one["kind"], one["metadata"]["name"]): one for one in found}


def rules(objects: dict[tuple[str, str], dict[str, Any]]) -> set[tuple[str, str, str, str]]:
    """(kind of role, group, resource, verb) of everything that is granted."""
    return {
        (kind, group, resource, verb)
        for (kind, _), one in objects.items()
        if kind.endswith("Role")
        for rule in one["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_least_is_a_namespace_and_what_clients_need_in_it() -> None:
    """No right beyond the namespace, none on pods/exec, none on secrets."""
    objects = made()
    assert set(objects) == {
        ("Namespace", "rl"), ("ServiceAccount", "sandlot-client"),
        ("Role", "sandlot-client"), ("RoleBinding", "sandlot-client"),
    }  # fmt: skip
    pods, leases = ("Role", "", "pods"), ("Role", "coordination.k8s.io", "leases")
    expected = {(*pods, verb) for verb in ("create", "get", "list", "watch", "delete", "deletecollection")}
    expected |= {(*leases, verb) for verb in ("create", "get", "list", "patch", "delete")}
    assert rules(objects) == expected | {("Role", "", "events", "list")}


def test_executing_in_pods_is_a_role_of_its_own() -> None:
    """Whoever has it may do everything in every pod of the namespace."""
    objects = made(exec_bridge=True)
    assert ("Role", "sandlot-exec") in objects
    assert all(rule["resources"] != ["pods/exec"] for rule in objects["Role", "sandlot-client"]["rules"])


def test_rights_for_the_cluster_are_named_after_the_namespace() -> None:
    """Two namespaces in one cluster do not overwrite each other's."""
    objects = made(looking=True, exec_bridge=True)
    assert {name for kind, name in objects if kind == "ClusterRole"} == {"sandlot-looking-rl"}
    named = [rule["resourceNames"] for rule in objects["ClusterRole", "sandlot-looking-rl"]["rules"] if "resourceNames" in rule]
    assert named == [["rl"]]
    assert not any(verb not in ("get", "list", "watch") for kind, _, _, verb in rules(objects) if kind == "ClusterRole")


def test_every_binding_is_of_a_role_and_an_account_that_are_there() -> None:
    """Nothing is granted to anybody else."""
    objects = made(exec_bridge=True, looking=True, policies=True, reaper_image="a.b/c")
    for (kind, _), one in objects.items():
        if kind.endswith("Binding"):
            assert (one["roleRef"]["kind"], one["roleRef"]["name"]) in objects
            assert all(("ServiceAccount", who["name"]) in objects and who["namespace"] == "rl" for who in one["subjects"])


def test_the_reaper_may_remove_and_nothing_else() -> None:
    """It makes no pod."""
    objects = made(reaper_image="a.b/c")
    granted = {verb for rule in objects["Role", "sandlot-reaper"]["rules"] for verb in rule["verbs"]}
    assert granted == {"list", "get", "delete", "deletecollection"}
    container = objects["Deployment", "sandlot-reaper"]["spec"]["template"]["spec"]["containers"][0]
    assert container["command"] == ["sandlot", "gc", "--kubernetes", "--namespace", "rl", "--watch"]


def test_policies_close_everything_but_the_way_to_clients() -> None:
    """Nothing in, nothing out; one exception each way."""
    objects = made(policies=True, clients=("192.0.2.7",), port=7000)
    deny = objects["NetworkPolicy", "sandlot-deny"]["spec"]
    assert deny["policyTypes"] == ["Ingress", "Egress"]
    assert "ingress" not in deny
    assert "egress" not in deny
    out = objects["NetworkPolicy", "sandlot-dial-out"]["spec"]["egress"]
    assert [rule["ports"] for rule in out] == [[{"protocol": "TCP", "port": 7000}]]
    assert [list(peer) for peer in out[0]["to"]] == [["namespaceSelector", "podSelector"], ["ipBlock"]]
    assert out[0]["to"][0]["podSelector"]["matchLabels"] == {CLIENT_LABEL: "true"}
    assert out[0]["to"][1]["ipBlock"] == {"cidr": "192.0.2.7/32"}
    into = objects["NetworkPolicy", "sandlot-dial-in"]["spec"]["ingress"]
    assert [port["port"] for port in into[0]["ports"]] == [LISTEN_PORT]


def test_a_network_is_the_internet_without_what_is_private() -> None:
    """Also for sandboxes that were given one: no metadata address, no node, no other pod."""
    spec = made(policies=True)["NetworkPolicy", "sandlot-network"]["spec"]
    assert spec["podSelector"]["matchLabels"]["sandlot.dev/network"] == "host"
    assert {"169.254.0.0/16", "10.0.0.0/8"} <= set(spec["egress"][0]["to"][0]["ipBlock"]["except"])


@pytest.mark.parametrize("options", [{"namespace": "No Good"}, {"clients": ("here",)}])
def test_what_cannot_be_is_refused(options: dict[str, Any]) -> None:
    """Before anything is printed."""
    with pytest.raises(BadRequest):
        ManifestOptions(**options)
