"""What a cluster may have besides the usual; fixed when it is brought up."""

from dataclasses import dataclass

NODE_GRACE_S = 3600
"""With Kubernetes' own 50 s fake nodes are called lost whenever this machine is busy, and every pod on them with them."""


@dataclass(frozen=True)
class Options:
    """Which parts, and how patient."""

    runtimes: tuple[str, ...] = ()
    """Container runtimes besides runc, each a RuntimeClass of that name: `gvisor`."""

    policies: bool = False
    """Whether NetworkPolicies are enforced. One such cluster at a time: the rules are the machine's."""

    node_grace_s: int = NODE_GRACE_S
    """How long a node may miss heartbeats before it is called lost."""

    def covers(self, other: "Options") -> bool:
        """Whether a cluster with these has what `other` asks for."""
        same = self.node_grace_s == other.node_grace_s
        return same and set(other.runtimes) <= set(self.runtimes) and self.policies >= other.policies


USUAL = Options()
