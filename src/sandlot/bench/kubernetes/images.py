"""Images that a benchmark needs, brought where nodes pull from before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass

from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.credentials import credentials
from sandlot.backends.kubernetes.images import PublishedImages
from sandlot.backends.kubernetes.noticing import Notice
from sandlot.backends.local.runtime import cache_dir
from sandlot.bench.kubernetes.plans import Nodes
from sandlot.spec import Spec

UNPULLED = "sandlot.dev/daemon:none"
"""Where nothing is ever pulled, any reference will do."""


@dataclass(frozen=True, slots=True)
class Pulled:
    """References that nodes can pull."""

    task: str
    daemon: str


async def published(image: str, nodes: Nodes, notice: Notice) -> Pulled:
    """The task's image and the daemon's, as nodes know them.

    Raises:
        Unsupported: the cluster advertises no registry that they could be pushed to.
    """
    if nodes == "fake":
        return Pulled(image, UNPULLED)
    async with await Api.open(credentials()) as api:
        images = PublishedImages(None, cache_dir(), notice=notice)
        await images.start(api)
        try:
            return Pulled(await images.reference(Spec(image=image)), await images.daemon())
        finally:
            await images.aclose()
