"""How a provider comes to be: one function for each kind of backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sandlot.backends.local import LocalBackend
from sandlot.backends.local.images.store import Progress
from sandlot.events import EventLog
from sandlot.policy import Settings, cluster_settings
from sandlot.provider import Provider

if TYPE_CHECKING:
    from sandlot.backends.kubernetes import ClusterOptions
    from sandlot.backends.kubernetes.publishing.publisher import Progress as PublishingProgress

IdMode = Literal["range-root", "range-rootless", "single", "nested"]


def local(
    settings: Settings | None = None,
    *,
    events: EventLog | None = None,
    cache: Path | str | None = None,
    mode: IdMode | None = None,
    progress: Progress | None = None,
) -> Provider:
    """A provider of sandboxes on this machine. Use it as `async with sandlot.local() as provider`.

    Entering it starts one daemon process that makes the sandboxes; leaving it deletes every attached one. Should this
    process die instead, in whatever way, the daemon deletes them. A forked worker opens a provider of its own.

    Args:
        settings: pace, time-outs and retries; None: the defaults of `Settings`.
        events: where the provider writes what happens; None: a log in memory.
        cache: where unpacked image layers are kept; None: `SANDLOT_CACHE`, else `~/.cache/sandlot`.
        mode: how sandbox users become users of this machine; None: the best there is. `sandlot doctor` says which.
        progress: called with each step while an image is being unpacked; None: the steps go to the log `sandlot`.

    Raises:
        Unsupported: on entering, when this machine or user cannot have sandboxes; the hint says what is missing.
    """
    backend = LocalBackend(cache=None if cache is None else Path(cache), mode=mode, progress=progress)
    return Provider(backend, settings, events=events)


def kubernetes(
    settings: Settings | None = None,
    *,
    options: ClusterOptions | None = None,
    kubeconfig: Path | str | None = None,
    context: str | None = None,
    registry: str | None = None,
    events: EventLog | None = None,
    progress: PublishingProgress | None = None,
    notice: Callable[[str], None] | None = None,
) -> Provider:
    """A provider of sandboxes that are pods of a cluster. Use it as `async with sandlot.kubernetes() as provider`.

    Entering it takes a Lease in the sandboxes' namespace; leaving it deletes every attached sandbox and the Lease. Should
    this process die instead, other clients, `sandlot gc --kubernetes` or the in-cluster reaper delete them when the Lease has
    run out, and each daemon ends by itself when it has had no link for a while. A forked worker opens a provider of its own.

    Args:
        settings: pace, time-outs and retries; None: `cluster_settings()`, the defaults of `Settings` but for the pace.
        options: namespace, ways of links and delivery, leases and patience; None: the defaults of `ClusterOptions`.
        kubeconfig: None: `KUBECONFIG`, else `~/.kube/config`, else the service account of this pod.
        context: of the kubeconfig; None: its current one.
        registry: `HOST[:PORT][/PATH]` where images of this machine and the daemon's are pushed to; None: the registry that
            the cluster advertises (ConfigMap kube-public/local-registry-hosting), if any.
        events: where the provider writes what happens; None: a log in memory.
        progress: called with each step while an image is being published.
        notice: called with what a sandbox or a publication waits for while it may still succeed, perhaps for each of
            thousands of pods; None: it goes to the log `sandlot`.

    Raises:
        Unsupported, Denied: on entering, when there are no credentials or rights, or the extra `kubernetes` is not installed.
        Infrastructure: on entering, when the API server does not answer.
    """
    from sandlot.backends.kubernetes import ClusterOptions, KubernetesBackend
    from sandlot.backends.kubernetes.credentials import credentials
    from sandlot.backends.kubernetes.images import PublishedImages
    from sandlot.backends.kubernetes.noticing import log_notice
    from sandlot.backends.kubernetes.preflight.remembering import Memory
    from sandlot.backends.local.runtime import cache_dir

    told = notice or log_notice
    images = PublishedImages(registry, cache_dir(), progress, notice=told)
    memory = Memory(cache_dir() / "clusters")
    load, wanted = credentials(kubeconfig, context), options or ClusterOptions()
    backend = KubernetesBackend(load, images, wanted, memory=memory, notice=told)
    return Provider(backend, settings or cluster_settings(), events=events)
