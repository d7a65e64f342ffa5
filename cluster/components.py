"""The components of a cluster: how each is started, and what says that it serves. Pure: layout and tools in, values out."""

from collections.abc import Mapping
from dataclasses import dataclass

from cluster.layout import REAL_LABEL, REAL_NODE, Layout
from cluster.options import Options
from cluster.tools import Tools


@dataclass(frozen=True)
class Component:
    """One process of the cluster."""

    name: str
    argv: tuple[str, ...]
    answers: str
    """What tells that it serves: an http or https address that answers 200, `grpc:` and a socket, or `file:` and a path."""

    after: tuple[str, ...] = ()
    """Components that have to serve before this one is started."""

    in_node: bool = False
    """Whether it lives in the node's mount namespace."""


def components(layout: Layout, tools: Tools, options: Options) -> tuple[Component, ...]:
    """All of them, in the order in which they start; they stop in the reverse order."""
    return (
        _holder(layout),
        _etcd(layout, tools),
        _containerd(layout, tools),
        _registry(layout, tools),
        _apiserver(layout, tools),
        _controller_manager(layout, tools, options),
        _scheduler(layout, tools),
        _kubelet(layout, tools),
        _kwok(layout, tools, options),
        *([_policies(layout, tools)] if options.policies else []),
    )


def environment(layout: Layout, tools: Tools) -> Mapping[str, str]:
    """For each component: nothing of the caller's own, proxies above all."""
    return {"PATH": tools.search_path, "HOME": str(layout.top), "LANG": "C.UTF-8"}


_HOLDER = """
set -eu
mount --make-rprivate /
mount --make-rshared /
mount -t tmpfs -o mode=755,size=64m sandlot-run /run
for pair in kubelet:/var/lib/kubelet cni:/var/lib/cni log:/var/log; do
    mount --bind "$1/${pair%%:*}" "${pair#*:}"
done
: >"$1/ready"
exec sleep infinity
"""


def _holder(layout: Layout) -> Component:
    """Holds the mount namespace that containerd and the kubelet live in. Whatever they mount is gone with it, and the paths
    that are fixed in their code are this cluster's own."""
    argv = ("unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", _HOLDER, "node", str(layout.node))
    return Component("node", argv, f"file:{layout.node}/ready")


def _etcd(layout: Layout, tools: Tools) -> Component:
    client, peer = f"http://127.0.0.1:{layout.etcd_port}", f"http://127.0.0.1:{layout.etcd_peer_port}"
    argv = (
        str(tools.path("etcd")),
        "--name=sandlot",
        f"--data-dir={layout.top}/etcd",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=sandlot={peer}",
        "--unsafe-no-fsync",
        f"--quota-backend-bytes={8 << 30}",
        "--log-level=warn",
    )
    return Component("etcd", argv, f"{client}/health")


def _containerd(layout: Layout, tools: Tools) -> Component:
    argv = (str(tools.path("containerd")), f"--config={layout.config}/containerd.toml", "--log-level=warn")
    return Component("containerd", argv, f"grpc:{layout.containerd_socket}", after=("node",), in_node=True)


def _registry(layout: Layout, tools: Tools) -> Component:
    argv = (str(tools.path("docker-registry")), "serve", f"{layout.config}/registry.json")
    return Component("registry", argv, f"http://{layout.registry}/v2/")


def _apiserver(layout: Layout, tools: Tools) -> Component:
    pki = layout.pki
    argv = (
        str(tools.path("kube-apiserver")),
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.api_port}",
        f"--advertise-address={layout.gateway}",
        "--endpoint-reconciler-type=none",
        f"--etcd-servers=http://127.0.0.1:{layout.etcd_port}",
        f"--service-cluster-ip-range={layout.services}",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        f"--kubelet-client-certificate={pki}/apiserver-kubelet.crt",
        f"--kubelet-client-key={pki}/apiserver-kubelet.key",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/service-account.pub",
        f"--service-account-signing-key-file={pki}/service-account.key",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        "--max-requests-inflight=1600",
        "--max-mutating-requests-inflight=800",
        "--delete-collection-workers=16",
        "--event-ttl=10m",
        "--profiling=false",
    )
    return Component("apiserver", argv, f"{layout.server}/readyz", after=("etcd",))


def _controller_manager(layout: Layout, tools: Tools, options: Options) -> Component:
    argv = (
        str(tools.path("kube-controller-manager")),
        f"--kubeconfig={layout.config}/controller-manager.kubeconfig",
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.controller_manager_port}",
        f"--root-ca-file={layout.pki}/ca.crt",
        f"--service-account-private-key-file={layout.pki}/service-account.key",
        "--use-service-account-credentials=true",  # the roles of the single controllers; the manager's own allow little
        "--leader-elect=false",
        "--kube-api-qps=300",
        "--kube-api-burst=500",
        f"--node-monitor-grace-period={options.node_grace_s}s",
    )
    address = f"https://127.0.0.1:{layout.controller_manager_port}/healthz"
    return Component("controller-manager", argv, address, after=("apiserver",))


def _scheduler(layout: Layout, tools: Tools) -> Component:
    argv = (
        str(tools.path("kube-scheduler")),
        f"--config={layout.config}/scheduler.json",
        "--bind-address=127.0.0.1",
        f"--secure-port={layout.scheduler_port}",
    )
    return Component("scheduler", argv, f"https://127.0.0.1:{layout.scheduler_port}/healthz", after=("apiserver",))


def _kubelet(layout: Layout, tools: Tools) -> Component:
    argv = (
        str(tools.path("kubelet")),
        f"--config={layout.config}/kubelet.json",
        f"--kubeconfig={layout.config}/kubelet.kubeconfig",
        f"--hostname-override={REAL_NODE}",
        f"--node-ip={layout.gateway}",
        f"--node-labels={REAL_LABEL}=real",
    )
    address = f"http://127.0.0.1:{layout.kubelet_health_port}/healthz"
    return Component("kubelet", argv, address, after=("containerd", "apiserver"), in_node=True)


def _kwok(layout: Layout, tools: Tools, options: Options) -> Component:
    argv = (
        str(tools.path("kwok")),
        f"--kubeconfig={layout.kubeconfig}",
        f"--config={tools.kwok_stages}",
        "--manage-all-nodes=false",
        "--manage-nodes-with-label-selector=type=kwok",
        f"--cidr={layout.fake_pods}",
        "--node-ip=127.0.0.1",
        f"--node-lease-duration-seconds={options.node_grace_s * 3 // 4}",
        f"--server-address=127.0.0.1:{layout.kwok_port}",
        "-v=ERROR",
    )
    return Component("kwok", argv, f"http://127.0.0.1:{layout.kwok_port}/healthz", after=("apiserver",))


def _policies(layout: Layout, tools: Tools) -> Component:
    """The part of kube-router that turns NetworkPolicies into rules of this machine's firewall."""
    argv = (
        str(tools.path("kube-router")),
        f"--kubeconfig={layout.kubeconfig}",
        f"--hostname-override={REAL_NODE}",
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        f"--service-cluster-ip-range={layout.services}",
        f"--health-port={layout.policies_port}",
    )
    return Component("policies", argv, f"http://127.0.0.1:{layout.policies_port}/healthz", after=("kubelet",))
