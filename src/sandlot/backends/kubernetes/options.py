"""How one client uses one cluster: a frozen value with a text for each field."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from sandlot.errors import BadRequest

Connect = Literal["auto", "dial-out", "dial-in", "exec-bridge"]
Delivery = Literal["auto", "image", "init", "hostpath"]

LISTEN_PORT: Final = 7681
"""Where daemons listen for `dial-in`, in their pods' own network namespaces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """How one client uses one cluster. Times in seconds."""

    namespace: str | None = None
    """Where the sandboxes are made. None: the namespace that the kubeconfig's context names."""
    connect: Connect = "auto"
    """Who opens the link. `dial-out`: the daemon calls this process, at `advertise`; usable the instant it runs.
    `dial-in`: this process calls the pod's address. `exec-bridge`: through the API server, for clients outside of the
    cluster's network. `auto`: what `sandlot doctor --kubernetes --probe` found to work; else dial-out inside of a pod or
    where `advertise` is said; else dial-in, and where a pod's address cannot be reached, exec-bridge."""
    advertise: str | None = None
    """Host or address under which pods reach this process, for dial-out. None: this pod's own address."""
    bind: str = ""
    """Address to listen on for dial-out. Empty: all."""
    port: int = 0
    """Port to listen on for dial-out; 0: any free one."""
    delivery: Delivery = "auto"
    """How the daemon comes into an unmodified image. `image`: a read-only volume made from `daemon_image`, mounted by the
    node (Kubernetes 1.35 or newer, containerd 2.1 or newer). `init`: an init container copies it, anywhere. `hostpath`:
    it lies on every node in `daemon_path`. `auto`: what `sandlot doctor --kubernetes --probe` found to work, else `image`
    where the server's and all nodes' versions have it, else `init`."""
    daemon_image: str | None = None
    """Reference of the image that holds `/sandlotd` (`sandlot image push-daemon`). Not needed for `hostpath`."""
    daemon_path: str = "/opt/sandlot"
    """Directory on the nodes that holds `sandlotd`, for `hostpath`."""
    lease_s: float = 60.0
    """How long this client may be silent before others delete what it left."""
    renew_s: float = 10.0
    """Between two renewals of that lease."""
    link_grace_s: float = 300.0
    """How long a sandbox whose link is cut goes on by itself; a cut shorter than this loses nothing. Sandboxes of a client
    that is gone are deleted after `lease_s` all the same: the grace is for networks, the lease for clients."""
    max_lifetime_s: float = 86_400.0
    """After this the cluster ends a sandbox in any case, the last of all stops."""
    unschedulable_s: float = 15.0
    """How long the scheduler may find no place before that is `Capacity`. More where nodes are added on demand."""
    scheduler_silence_s: float = 300.0
    """How long no scheduler may say anything of a pod, nor of others of this client that came before it or soon after,
    before that is `NotReady`: on a shared cluster thousands of others' pods may stand before ours in a queue that is alive.
    A scheduler that the spec names, and of which this client has never heard, has `unschedulable_s`."""
    pull_patience_s: float = 60.0
    """How long a failing pull may be tried again by the node when the reason may pass (a registry that is down). A
    reference with nothing behind it fails at once."""

    def __post_init__(self) -> None:
        if self.lease_s < 5 or not 0 < self.renew_s <= self.lease_s / 3:
            raise BadRequest("lease_s must be at least 5 and renew_s at most a third of it")
        if self.link_grace_s <= 0 or self.max_lifetime_s < 1:
            raise BadRequest("link_grace_s must be positive and max_lifetime_s at least 1")
        if not 0 <= self.port <= 65_535:
            raise BadRequest(f"port must be between 0 and 65535, got {self.port}")
