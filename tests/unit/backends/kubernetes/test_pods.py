"""From specs to pods."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandlot.backends.base import Grant
from sandlot.backends.kubernetes import pods
from sandlot.backends.kubernetes.objects import OwnerReference
from sandlot.backends.kubernetes.options import ClusterOptions
from sandlot.errors import BadRequest, LimitUnenforceable, SandlotError
from sandlot.podoptions import PodOptions
from sandlot.spec import Spec

LEASE = OwnerReference(kind="Lease", name="sandlot-client-c1", uid="u1")
OPTIONS = ClusterOptions(delivery="image", daemon_image="r/sandlotd:1")


def made(
    spec: Spec | None = None, *, grant: Grant | None = None, options: ClusterOptions = OPTIONS, **environment: str
) -> dict[str, Any]:
    request = pods.PodRequest(
        name="a1b2c3d4-1",
        spec=spec or Spec(image="r/app:1"),
        grant=grant or Grant(),
        image="r/app@sha256:1",
        client="c1",
        lease=LEASE,
        mark="m1",
        environment=environment,
    )
    pod: dict[str, Any] = json.loads(pods.manifest(request, options))
    return pod


def task(pod: dict[str, Any]) -> dict[str, Any]:
    container: dict[str, Any] = pod["spec"]["containers"][0]
    return container


def env(pod: dict[str, Any]) -> dict[str, str]:
    return {one["name"]: one["value"] for one in task(pod)["env"]}


def test_pod_of_a_plain_spec_is_as_small_as_it_can_be() -> None:
    """No probe, token, service link or volume but the daemon's; one container with the daemon as its command."""
    pod = made(SANDLOT_ENROL="s")
    spec = pod["spec"]
    assert spec.pop("containers") == [
        {
            "name": "task",
            "image": "r/app@sha256:1",
            "imagePullPolicy": "IfNotPresent",
            "command": ["/sandlot/sandlotd", "pod"],
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "env": [
                {"name": "SANDLOT_NAME", "value": "a1b2c3d4-1"},
                {"name": "SANDLOT_DISK_BYTES", "value": "1073741824"},
                {"name": "SANDLOT_SHM_BYTES", "value": "67108864"},
                {"name": "SANDLOT_ENROL", "value": "s"},
                {"name": "SANDLOT_UNENFORCED", "value": "pids"},
            ],
            "resources": {"limits": {"ephemeral-storage": "1073741824"}, "requests": {"ephemeral-storage": "0"}},
            "securityContext": {"capabilities": {"drop": ["NET_RAW", "MKNOD"]}},
            "volumeMounts": [{"name": "sandlot", "mountPath": "/sandlot", "readOnly": True}],
        }
    ]
    assert spec == {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": 0,
        "activeDeadlineSeconds": 86_400,
        "hostname": "sandbox",
        "volumes": [{"name": "sandlot", "image": {"reference": "r/sandlotd:1", "pullPolicy": "IfNotPresent"}}],
    }


def test_pod_says_whose_it_is() -> None:
    """Labels for every selector that is used, the Lease as its owner, the caller's image for listings."""
    meta = made(Spec(image="r/app:1", labels={"run": "r 1"}))["metadata"]
    assert meta["labels"] == {
        "run": "r-1",
        "sandlot.dev/kind": "sandbox",
        "sandlot.dev/client": "c1",
        "sandlot.dev/owner": "attached",
        "sandlot.dev/shard": meta["labels"]["sandlot.dev/shard"],
        "sandlot.dev/network": "none",
        "sandlot.dev/create": "m1",
    }
    assert meta["annotations"] == {"sandlot.dev/image": "r/app:1", "sandlot.dev/labels": '{"run":"r 1"}'}
    owner = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "name": "sandlot-client-c1", "uid": "u1"}
    assert meta["ownerReferences"] == [owner]


def test_limits_and_requests() -> None:
    """Memory is reserved whole, CPU up to what the scheduler assumes anyway; what the caller requests goes over both."""
    resources = task(made(Spec(image="i", cpu=1.5, memory="128MiB", disk="2GiB")))["resources"]
    assert resources["limits"] == {"ephemeral-storage": "2147483648", "memory": "134217728", "cpu": "1500m"}
    assert resources["requests"] == {"ephemeral-storage": "0", "memory": "134217728", "cpu": "100m"}
    wanted = PodOptions(requests={"cpu": 1, "memory": "64Mi"}, limits={"nvidia.com/gpu": 1})
    resources = task(made(Spec(image="i", cpu=0.05, memory="128MiB", pod=wanted)))["resources"]
    assert resources["requests"] == {"ephemeral-storage": "0", "memory": "64Mi", "cpu": "1"}
    assert resources["limits"]["nvidia.com/gpu"] == "1"
    with pytest.raises(BadRequest, match="memory"):
        made(Spec(image="i", pod=PodOptions(limits={"memory": "1Gi"})))


@pytest.mark.parametrize(
    ("pids", "limits", "named"),
    [(4096, "require", "pids"), (None, "require", None), (64, "best-effort", "pids"), (64, "require", LimitUnenforceable)],
)
def test_limit_on_processes_is_named_or_refused(pids: int | None, limits: Any, named: Any) -> None:
    """No pod can hold it: the default is let pass and named, a chosen number is refused unless best effort will do."""
    spec = Spec(image="i", pids=pids, limits=limits)
    if isinstance(named, type) and issubclass(named, SandlotError):
        with pytest.raises(named):
            made(spec)
    else:
        assert env(made(spec)).get("SANDLOT_UNENFORCED") == named


@pytest.mark.parametrize(
    ("user", "context", "variable"),
    [
        (None, {}, None),
        (1000, {"runAsUser": 1000}, None),
        ("1000", {"runAsUser": 1000}, None),
        ("1000:50", {"runAsUser": 1000, "runAsGroup": 50}, None),
        ("nobody", {}, "nobody"),
        ("nobody:50", {}, "nobody:50"),
    ],
)
def test_user_is_the_nodes_where_it_is_a_number(user: Any, context: dict[str, int], variable: str | None) -> None:
    """A name is known only inside the image: the daemon looks it up."""
    pod = made(Spec(image="i", user=user))
    got = {key: value for key, value in task(pod)["securityContext"].items() if key.startswith("runAs")}
    assert (got, env(pod).get("SANDLOT_USER")) == (context, variable)


def test_environment_arrives_as_it_was_written() -> None:
    """The kubelet replaces $(NAME) and $$: each dollar sign is doubled so that commands get what the caller wrote."""
    values = {"A": "l1\nl2", "B": "a'b\"c$d", "C": "", "D": "$(A) $$ $$(A) $", "lower.dots-1": "ä"}
    expanded = {name: value.replace("$$", "$") for name, value in env(made(Spec(image="i", env=values))).items()}
    assert expanded["D"] == values["D"]
    assert {name: expanded[name] for name in values} == values


@pytest.mark.parametrize("variable", [{"SANDLOT_ENROL": "x"}, {"A": "\udc80"}, {"Ä": "x"}, {"A\n": "x"}])
def test_impossible_variables_are_refused(variable: dict[str, str]) -> None:
    """Ours, and what JSON or the API cannot say."""
    with pytest.raises(BadRequest):
        made(Spec(image="i", env=variable))


def test_leases_and_lifetimes_reach_the_daemon_and_the_cluster() -> None:
    """The longest life is the cluster's own deadline. A lease is the cluster's alone: whoever renews it may have no link."""
    pod = made(grant=Grant(owner="leased", lease_s=90.5, idle_timeout_s=5, max_lifetime_s=1.2))
    assert ("SANDLOT_LEASE_MS" in env(pod), env(pod)["SANDLOT_IDLE_MS"]) == (False, "5000")
    assert pod["spec"]["activeDeadlineSeconds"] == 2
    assert pod["metadata"]["labels"]["sandlot.dev/owner"] == "leased"


def test_shared_memory_is_a_volume_only_where_it_differs_from_the_runtimes() -> None:
    """64 MiB come for nothing; asked for, or with a memory limit (then half of it), it is a memory-backed volume."""

    def shm(spec: Spec) -> Any:
        return [one["emptyDir"] for one in made(spec)["spec"]["volumes"] if one["name"] == "sandlot-shm"]

    assert shm(Spec(image="i")) == []
    assert shm(Spec(image="i", shm="64MiB", memory="1GiB")) == []
    assert shm(Spec(image="i", shm="1GiB")) == [{"medium": "Memory", "sizeLimit": "1073741824"}]
    assert shm(Spec(image="i", memory="512MiB")) == [{"medium": "Memory", "sizeLimit": "268435456"}]


def test_read_only_system_keeps_its_scratch_places() -> None:
    """/tmp and /run are memory-backed then."""
    pod = made(Spec(image="i", read_only=True))
    assert task(pod)["securityContext"]["readOnlyRootFilesystem"] is True
    assert {one["mountPath"] for one in task(pod)["volumeMounts"]} == {"/sandlot", "/tmp", "/run"}


def test_delivery_by_init_container_and_from_the_node() -> None:
    """The same place for the daemon, whichever way it comes there."""
    init = made(options=ClusterOptions(delivery="init", daemon_image="r/sandlotd:1"))["spec"]
    assert init["initContainers"][0]["command"] == ["/sandlotd", "install", "/sandlot"]
    assert init["volumes"] == [{"name": "sandlot", "emptyDir": {}}]
    node = made(options=ClusterOptions(delivery="hostpath"))["spec"]
    assert node["volumes"] == [{"name": "sandlot", "hostPath": {"path": "/opt/sandlot", "type": "Directory"}}]
    assert node["containers"][0]["volumeMounts"] == [{"name": "sandlot", "mountPath": "/sandlot", "readOnly": True}]
    with pytest.raises(BadRequest, match="push-daemon"):
        made(options=ClusterOptions(delivery="image"))


def test_restricted_pods_meet_the_standard_of_that_name() -> None:
    """No privileges to gain, no capabilities, not root: for the daemon's own container too."""
    options = ClusterOptions(delivery="init", daemon_image="d")
    pod = made(Spec(image="i", user=1000, pod=PodOptions(security="restricted")), options=options)
    wanted = {"allowPrivilegeEscalation": False, "runAsNonRoot": True, "capabilities": {"drop": ["ALL"]}, "runAsUser": 1000}
    assert task(pod)["securityContext"] == wanted
    assert pod["spec"]["initContainers"][0]["securityContext"] == wanted
    assert pod["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}


@pytest.mark.parametrize("user", [None, 0, "0:5", "app"])
def test_the_runtimes_filter_does_not_forbid_what_resets_need(user: int | str | None) -> None:
    """Root's daemon makes a user namespace, and filters the system calls of commands itself."""
    assert "securityContext" not in made(Spec(image="i", user=user))["spec"]


def test_who_cannot_have_the_daemons_filter_has_the_runtimes() -> None:
    """A pod that is known not to be root's."""
    pod = made(Spec(image="i", user=1000))["spec"]
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}


def test_options_of_placement_are_the_pods_own() -> None:
    """Each goes where Kubernetes has it."""
    wanted = PodOptions(
        node_selector={"a": "b"}, tolerations=({"key": "k", "operator": "Exists"},), affinity={"nodeAffinity": {}},
        runtime_class="gvisor", pull_secrets=("s",), pull_policy="Always", service_account="sa", scheduler="mine",
        priority_class="low", host_users=False, annotations={"x/y": "z"},
    )  # fmt: skip
    pod = made(Spec(image="i", pod=wanted, workdir="/w", hostname="h"))
    expected = {
        "nodeSelector": {"a": "b"}, "tolerations": [{"key": "k", "operator": "Exists"}], "affinity": {"nodeAffinity": {}},
        "runtimeClassName": "gvisor", "imagePullSecrets": [{"name": "s"}], "serviceAccountName": "sa", "hostname": "h",
        "schedulerName": "mine", "priorityClassName": "low", "hostUsers": False,
    }  # fmt: skip
    assert {key: pod["spec"][key] for key in expected} == expected
    assert (task(pod)["imagePullPolicy"], task(pod)["workingDir"]) == ("Always", "/w")
    assert pod["metadata"]["annotations"]["x/y"] == "z"


@pytest.mark.parametrize("spec", [Spec(image="i", hostname="under_score"), Spec(image="i", workdir="rel")])
def test_what_a_pod_cannot_say_is_refused(spec: Spec) -> None:
    """Before anything is sent."""
    with pytest.raises(BadRequest):
        made(spec)


# --- extra ------------------------------------------------------------------------------------------------------------
def test_extra_is_merged_over_everything() -> None:
    """Mappings by key, named lists by name, other lists whole; None removes."""
    extra = {
        "securityContext": {"fsGroup": 5},
        "hostname": None,
        "tolerations": [{"key": "new"}],
        "containers": [
            {"name": "task", "env": [{"name": "A", "value": "extra"}, {"name": "B", "value": "b"}], "tty": True},
            {"name": "helper", "image": "h"},
        ],
        "volumes": [{"name": "data", "emptyDir": {}}],
    }
    pod = made(Spec(image="i", env={"A": "spec"}, pod=PodOptions(extra=extra, tolerations=({"key": "old"},))))
    spec = pod["spec"]
    assert spec["securityContext"] == {"fsGroup": 5}
    assert "hostname" not in spec
    assert spec["tolerations"] == [{"key": "new"}]
    assert [one["name"] for one in spec["containers"]] == ["task", "helper"]
    assert (env(pod)["A"], env(pod)["B"], task(pod)["tty"]) == ("extra", "b", True)
    assert [one["name"] for one in spec["volumes"]] == ["sandlot", "data"]


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"restartPolicy": "Always"}, "restartPolicy"),
        ({"shareProcessNamespace": True}, "shareProcessNamespace"),
        ({"hostPID": True}, "hostPID"),
        ({"containers": [{"name": "task", "command": ["sh"]}]}, "command"),
        ({"containers": [{"name": "task", "args": ["x"]}]}, "args"),
        ({"containers": [{"name": "task", "image": "other"}]}, "image"),
        ({"containers": [{"name": "task", "env": [{"name": "SANDLOT_NAME", "value": "x"}]}]}, "env"),
        ({"containers": [{"name": "task", "volumeMounts": [{"mountPath": "/sandlot", "readOnly": False}]}]}, "volumeMounts"),
        ({"volumes": [{"name": "sandlot", "image": {"reference": "evil"}}]}, "volumes"),
        ({"containers": None}, "containers"),
        ({"containers": {"name": "task"}}, "must be a list"),
        ({"containers": [{"image": "nameless"}]}, "must be a list"),
        ({"containers": [{"name": "task", "resources": 5}]}, r"resources must be a mapping"),
    ],
)
def test_extra_cannot_break_what_sandlot_needs(extra: dict[str, Any], said: str) -> None:
    """It is refused with the field's path."""
    with pytest.raises(BadRequest, match=said):
        made(Spec(image="i", pod=PodOptions(extra=extra)))
