"""A real Kubernetes on this machine, for Sandlot's tests, benchmarks and examples (README.md beside this file)."""

from cluster.handle import Cluster, Container, NoCluster, running

__all__ = ["Cluster", "Container", "NoCluster", "running"]
