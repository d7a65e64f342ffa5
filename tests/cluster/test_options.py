"""What a cluster can do when it is asked to: gVisor, and NetworkPolicies that hold."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster, down, firewall, images, running, up
from cluster.api import Api
from cluster.options import Options
from cluster.say import Say
from tests.cluster import pods
from tests.cluster.conftest import own_name

_OPTIONS = Options(("gvisor",), policies=True)
_PORT = 8000


@pytest.fixture(scope="module")
def rich(able: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    """A cluster with all options, and the name of an image in its registry."""
    name = own_name("rich")
    try:
        up.up(up.Wanted(name, options=_OPTIONS), Say())
        found = running(name)
        commands = {f"bin/{command}": "busybox" for command in ("sh", "sleep", "cat", "nc")}
        made = images.make(tmp_path_factory.mktemp("rich") / "busybox", {"bin/busybox": Path("/bin/busybox")}, links=commands)
        yield found, found.push(made, "busybox:1")
    finally:
        left = down.down(name, Say())
    assert left == down.Left()
    assert firewall.left() == 0


@pytest.fixture
def api(rich: tuple[Cluster, str]) -> Iterator[Api]:
    with rich[0].api() as one:
        yield one


@pytest.fixture
def space(api: Api) -> Iterator[str]:
    with pods.namespace(api) as name:
        yield name


@pytest.mark.full
def test_a_gvisor_pod_has_another_kernel(rich: tuple[Cluster, str], api: Api, space: str) -> None:
    """It tells of itself what gVisor tells, and is gone from the node when it is deleted."""
    cluster, image = rich
    command = ["sh", "-c", "cat /proc/version; exec sleep 100000"]
    pod = pods.run(api, space, "guarded", image=image, command=command, runtimeClassName="gvisor")
    mine = Path("/proc/version").read_text()
    assert pods.log(api, space, "guarded") not in {"", mine}
    uid = pod["metadata"]["uid"]
    assert [one for one in cluster.containers() if one.pod_uid == uid]
    api.delete(f"/api/v1/namespaces/{space}/pods/guarded")
    pods.until(lambda: not [one for one in cluster.containers() if one.pod_uid == uid], "no container of the pod")


@pytest.mark.full
def test_a_policy_is_enforced(rich: tuple[Cluster, str], api: Api, space: str) -> None:
    """Without one a pod reaches another; denied it does not; allowed by label it does again."""
    image = rich[1]
    serve = ["sh", "-c", f"while true; do echo hello | nc -l -p {_PORT}; done"]
    server = pods.run(api, space, "server", image=image, command=serve)
    address = server["status"]["podIP"]
    ask = f"while true; do nc -w 1 {address} {_PORT} </dev/null 2>/dev/null; echo asked; sleep 0.2; done"
    pods.run(api, space, "client", image=image, command=["sh", "-c", ask], labels={"role": "client"})

    def answers() -> bool:
        """Whether the last whole question had an answer."""
        lines = pods.log(api, space, "client").split()
        return lines[-2:] == ["hello", "asked"]

    def is_silent() -> bool:
        return pods.log(api, space, "client").split()[-3:] == ["asked"] * 3

    pods.until(answers, "an answer without policies")
    policies = f"/apis/networking.k8s.io/v1/namespaces/{space}/networkpolicies"
    deny: dict[str, Any] = {"podSelector": {}, "policyTypes": ["Ingress"]}
    api.post(policies, {"metadata": {"name": "deny"}, "spec": deny})
    pods.until(is_silent, "silence under a policy that denies all")
    source = {"from": [{"podSelector": {"matchLabels": {"role": "client"}}}]}
    api.post(policies, {"metadata": {"name": "allow"}, "spec": deny | {"ingress": [source]}})
    pods.until(answers, "an answer to a client that is allowed")


def test_only_what_the_policies_made_is_taken_from_the_firewall() -> None:
    """Rules of others stay, those that jump into a removed chain go before it."""
    listing = """-P INPUT ACCEPT
-N KUBE-ROUTER-INPUT
-N KUBE-POD-FW-ABC
-N MINE
-A INPUT -j MINE
-A INPUT -m comment --comment "kube-router netpol - X" -j KUBE-ROUTER-INPUT
-A KUBE-ROUTER-INPUT -d 198.18.0.9/32 -j KUBE-POD-FW-ABC
-A MINE -s 10.0.0.1/32 -j DROP
"""
    assert firewall.undo(listing) == [
        '-D INPUT -m comment --comment "kube-router netpol - X" -j KUBE-ROUTER-INPUT',
        "-F KUBE-ROUTER-INPUT",
        "-F KUBE-POD-FW-ABC",
        "-X KUBE-ROUTER-INPUT",
        "-X KUBE-POD-FW-ABC",
    ]
    assert firewall.undo("-P INPUT ACCEPT\n-N MINE\n-A INPUT -j MINE\n") == []
