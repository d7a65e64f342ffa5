"""What `auto` in a client's options stands for in this cluster, decided once when the client starts."""

from __future__ import annotations

from dataclasses import replace

from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.options import ClusterOptions
from sandlot.backends.kubernetes.preflight.choosing import choose_connect, choose_delivery
from sandlot.backends.kubernetes.preflight.gathering import look_at_nodes
from sandlot.backends.kubernetes.preflight.remembering import Memory


async def resolved(api: Api, namespace: str, options: ClusterOptions, memory: Memory | None) -> ClusterOptions:
    """The options with `delivery` chosen, and `connect` where something is known of it: from what `sandlot doctor --probe`
    tried here lately, else from the versions of the server and of its nodes (two requests)."""
    tried = () if memory is None else memory.recall(api.credentials.server, namespace)
    if options.delivery == "auto":
        version, nodes = ("", None) if any(one.works for one in tried) else await look_at_nodes(api)
        options = replace(options, delivery=choose_delivery(version, nodes, tried).value)
    if options.connect == "auto":
        chosen = choose_connect(in_cluster=api.credentials.in_cluster, advertised=options.advertise is not None, tried=tried)
        if chosen is not None:
            options = replace(options, connect=chosen.value)
    return options
