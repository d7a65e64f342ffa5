"""Tells clients where the cluster's registry is, as KEP-1755 ("Communicating a local registry") has it."""

from cluster.api import Api
from cluster.layout import Layout


def advertise_registry(layout: Layout) -> None:
    """Put it where tools look for it."""
    hosting = f'host: "{layout.registry}"\nhelp: "images pushed there can be pulled by the cluster\'s nodes"\n'
    body = {"metadata": {"name": "local-registry-hosting"}, "data": {"localRegistryHosting.v1": hosting}}
    with Api(layout.server, layout.pki) as api:
        api.ensure("/api/v1/namespaces", {"metadata": {"name": "kube-public"}})  # a controller makes it, sooner or later
        api.ensure("/api/v1/namespaces/kube-public/configmaps", body)
