"""Sandboxes as pods of a Kubernetes cluster.

`credentials` finds out who we are, `api` speaks with the API server; `pods` and `status` are pure: a spec to a pod, and what a
pod's status means; `watching`, `leases` and `reaper` see to it that nothing is lost and nothing left; `links` are the sealed
connections to the daemons, `publishing` brings images to where nodes can pull them, and `backend` puts all of it behind
the `Backend` protocol.
"""

from sandlot.backends.kubernetes.backend import KubernetesBackend
from sandlot.backends.kubernetes.options import ClusterOptions

__all__ = ["ClusterOptions", "KubernetesBackend"]
