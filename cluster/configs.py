"""The configuration files of the components. JSON, which is YAML too; containerd alone wants TOML."""

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cluster.layout import Layout
from cluster.options import Options
from cluster.tools import Tools

PAUSE_IMAGE = "sandlot.dev/pause:1"

_CAP_SYS_RESOURCE = 1 << 24


def write(layout: Layout, tools: Tools, options: Options) -> None:
    """All of them, into `layout.config`."""
    top = layout.config
    _dump(top / "kubelet.json", _kubelet(layout))
    _dump(top / "scheduler.json", _scheduler(layout))
    _dump(top / "registry.json", _registry(layout))
    _dump(_made(top / "cni") / "10-sandlot.conflist", _network(layout))
    (top / "containerd.toml").write_text(_containerd(layout, tools, options))
    if "gvisor" in options.runtimes:
        (top / "runsc.toml").write_text(_runsc(tools))
    _made(top / "certs.d" / layout.registry).joinpath("hosts.toml").write_text(f'server = "http://{layout.registry}"\n')
    for who in ("controller-manager", "scheduler", "kubelet", "admin"):
        _dump(layout.kubeconfig if who == "admin" else top / f"{who}.kubeconfig", kubeconfig(layout, who))


def _made(path: Path) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    return path


def _dump(path: Path, value: Mapping[str, Any]) -> None:
    path.touch(mode=0o600)
    path.write_text(json.dumps(value, indent=2) + "\n")


def kubeconfig(layout: Layout, who: str) -> dict[str, Any]:
    """How `who`, one of the certificates' names, reaches the API server; credentials inside."""

    def inside(file: str) -> str:
        return base64.b64encode((layout.pki / file).read_bytes()).decode()

    name = layout.context
    credentials = {"client-certificate-data": inside(f"{who}.crt"), "client-key-data": inside(f"{who}.key")}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": layout.server, "certificate-authority-data": inside("ca.crt")}}],
        "users": [{"name": name, "user": credentials}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }  # fmt: skip


def _kubelet(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.gateway,
        "port": layout.kubelet_port,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": layout.kubelet_health_port,
        "readOnlyPort": 0,
        "tlsCertFile": str(layout.pki / "kubelet-serving.crt"),
        "tlsPrivateKeyFile": str(layout.pki / "kubelet-serving.key"),
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{layout.containerd_socket}",
        "volumePluginDir": str(layout.node / "kubelet" / "volume-plugins"),
        "resolvConf": "",
        "clusterDNS": [layout.gateway],  # nothing answers there, at once; without one each pod costs three warning events
        "clusterDomain": "cluster.local",
        # Any machine: old cgroup layout, no systemd, swap.
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{layout.cgroup}",
        "failCgroupV1": False,
        "failSwapOn": False,
        "enforceNodeAllocatable": [],
        "makeIPTablesUtilChains": False,
        # Many pods, quickly.
        "maxPods": 250,
        "podPidsLimit": 4096,
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "eventRecordQPS": 10,
        "registryPullQPS": 0,
        "serializeImagePulls": False,
        "maxParallelImagePulls": 16,
        # The images and pods of a test stay, however full the disk of a developer's machine is.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {"memory.available": "100Mi"},
    }  # fmt: skip


def _scheduler(layout: Layout) -> dict[str, Any]:
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": str(layout.config / "scheduler.kubeconfig"), "qps": 2000, "burst": 4000},
        "leaderElection": {"leaderElect": False},
        "podInitialBackoffSeconds": 1,
        "podMaxBackoffSeconds": 2,
    }


def _registry(layout: Layout) -> dict[str, Any]:
    return {
        "version": 0.1,
        "log": {"level": "warn", "accesslog": {"disabled": True}},
        "storage": {"filesystem": {"rootdirectory": str(layout.top / "registry")}, "delete": {"enabled": True}},
        "http": {"addr": layout.registry},
    }


def _network(layout: Layout) -> dict[str, Any]:
    """Bridge and addresses. The bridge stands already: were the plugin to give it its address, it would turn on forwarding."""
    return {
        "cniVersion": "1.0.0",
        "name": layout.network,
        "plugins": [
            {
                "type": "bridge",
                "bridge": layout.bridge,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(layout.top / "addresses"),
                    "ranges": [[{"subnet": str(layout.pods), "gateway": layout.gateway}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            }
        ],
    }


def _containerd(layout: Layout, tools: Tools, options: Options) -> str:
    text = f"""
version = 4
root = "{layout.top}/containerd/root"
state = "{layout.containerd_state}"
disabled_plugins = ["io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]

[plugins.'io.containerd.server.v1.grpc']
address = "{layout.containerd_socket}"

[plugins.'io.containerd.server.v1.ttrpc']
address = "{layout.containerd_socket}.ttrpc"

[plugins.'io.containerd.nri.v1.nri']
disable = true

[plugins.'io.containerd.transfer.v1.local']
max_concurrent_downloads = 10
max_concurrent_unpacks = 4
config_path = "{layout.config}/certs.d"

[plugins.'io.containerd.metadata.v1.bolt']
no_sync = true

[plugins.'io.containerd.internal.v1.opt']
path = "{layout.top}/containerd/opt"

[plugins.'io.containerd.cri.v1.images']
snapshotter = "overlayfs"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = "{PAUSE_IMAGE}"

[plugins.'io.containerd.cri.v1.images'.registry]
config_path = "{layout.config}/certs.d"

[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = {_toml(not _may_lower_oom_score())}

[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["{tools.cni}"]
conf_dir = "{layout.config}/cni"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
BinaryName = "{tools.path("runc")}"
SystemdCgroup = false
"""
    if "gvisor" in options.runtimes:
        text += f"""
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gvisor]
runtime_type = "io.containerd.runsc.v1"
runtime_path = "{tools.path("containerd-shim-runsc-v1")}"

[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.gvisor.options]
TypeUrl = "io.containerd.runsc.v1.options"
ConfigPath = "{layout.config}/runsc.toml"
"""
    return text.lstrip()


def _runsc(tools: Tools) -> str:
    """systrap is the platform that works everywhere, within virtual machines too. Without `allow-suid` no `su` or `sudo`."""
    return f"""
binary_name = "{tools.path("runsc")}"

[runsc_config]
platform = "systrap"
allow-suid = "true"
""".lstrip()


def _toml(value: bool) -> str:
    return "true" if value else "false"


def _may_lower_oom_score() -> bool:
    """Whether this process holds CAP_SYS_RESOURCE, without which no score may go below the own one."""
    lines = Path("/proc/self/status").read_text().splitlines()
    held = next(line.split()[1] for line in lines if line.startswith("CapEff:"))
    return bool(int(held, 16) & _CAP_SYS_RESOURCE)
