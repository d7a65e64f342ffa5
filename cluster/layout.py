"""Where a cluster's things are, and which numbers are its own. All of it follows from name, slot and identity."""

import ipaddress
import os
from dataclasses import dataclass
from pathlib import Path

SLOTS = 16
"""Clusters side by side on one machine at most."""

_FIRST_PORT = 23000  # below the range the kernel takes outgoing ports from, so nothing takes one by chance
_PORTS_PER_SLOT = 20
_PODS = ipaddress.IPv4Network("198.18.0.0/16")  # with 198.19/16 set apart for benchmarks of networks (RFC 2544): routed nowhere
_SERVICES = ipaddress.IPv4Network("198.19.0.0/16")

REAL_NODE = "sandlot-real"
FAKE_LABEL = "type"
FAKE_VALUE = "kwok"
REAL_LABEL = "sandlot.dev/test-node"


def state_root() -> Path:
    """The directory of all clusters' state: `SANDLOT_CLUSTER_STATE`, or `/var/lib/sandlot-cluster`."""
    return Path(os.environ.get("SANDLOT_CLUSTER_STATE") or "/var/lib/sandlot-cluster")


@dataclass(frozen=True)
class Layout:
    """Paths, ports, addresses and names of one cluster."""

    name: str
    slot: int
    uid: str
    """12 hexadecimal digits, new with each `up`."""

    top: Path
    """The directory that holds everything the cluster keeps on disk."""

    def port(self, offset: int) -> int:
        return _FIRST_PORT + self.slot * _PORTS_PER_SLOT + offset

    @property
    def ports(self) -> range:
        return range(self.port(0), self.port(_PORTS_PER_SLOT))

    @property
    def etcd_port(self) -> int:
        return self.port(0)

    @property
    def etcd_peer_port(self) -> int:
        return self.port(1)

    @property
    def api_port(self) -> int:
        return self.port(2)

    @property
    def controller_manager_port(self) -> int:
        return self.port(3)

    @property
    def scheduler_port(self) -> int:
        return self.port(4)

    @property
    def kubelet_port(self) -> int:
        return self.port(5)

    @property
    def kubelet_health_port(self) -> int:
        return self.port(6)

    @property
    def kwok_port(self) -> int:
        return self.port(7)

    @property
    def registry_port(self) -> int:
        return self.port(8)

    @property
    def policies_port(self) -> int:
        return self.port(9)

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self.api_port}"

    @property
    def registry(self) -> str:
        """Address of the image registry, as it stands at the head of an image's name."""
        return f"127.0.0.1:{self.registry_port}"

    @property
    def pods(self) -> ipaddress.IPv4Network:
        """Addresses of real pods: 4,096."""
        return list(_PODS.subnets(new_prefix=20))[self.slot]

    @property
    def gateway(self) -> str:
        """This machine, as pods see it: the bridge's own address."""
        return str(self.pods[1])

    @property
    def services(self) -> ipaddress.IPv4Network:
        return list(_SERVICES.subnets(new_prefix=24))[self.slot]

    @property
    def fake_pods(self) -> ipaddress.IPv4Network:
        """Loopback addresses of fake pods: 65,536."""
        return ipaddress.IPv4Network(f"127.{self.slot + 1}.0.0/16")

    @property
    def bridge(self) -> str:
        return f"sandlot{self.slot}"

    @property
    def bridge_mac(self) -> str:
        """Marks the bridge as this cluster's: a locally administered address made of the identity."""
        return ":".join(["02", *(self.uid[at : at + 2] for at in range(0, 10, 2))])

    @property
    def cgroup(self) -> str:
        """Below the root of each hierarchy."""
        return f"sandlot-cluster/{self.name}-{self.uid}"

    @property
    def network(self) -> str:
        """The name of the pod network in CNI's books."""
        return f"sandlot-{self.uid}"

    @property
    def context(self) -> str:
        return f"sandlot-{self.name}"

    @property
    def state_file(self) -> Path:
        return self.top / "state.json"

    @property
    def kubeconfig(self) -> Path:
        return self.top / "kubeconfig"

    @property
    def pki(self) -> Path:
        return self.top / "pki"

    @property
    def config(self) -> Path:
        return self.top / "config"

    @property
    def logs(self) -> Path:
        return self.top / "logs"

    @property
    def node(self) -> Path:
        """What lies over the machine's own directories in the node's mount namespace."""
        return self.top / "node"

    @property
    def containerd_socket(self) -> Path:
        return self.top / "containerd.sock"

    @property
    def containerd_state(self) -> Path:
        return self.top / "containerd" / "run"

    def log(self, component: str) -> Path:
        return self.logs / f"{component}.log"
