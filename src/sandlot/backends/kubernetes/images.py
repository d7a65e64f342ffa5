"""From what a spec calls its image to what a node can pull, and where the image with the daemon is."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.api_errors import ApiDenied, ApiNotFound
from sandlot.backends.kubernetes.noticing import Notice, log_notice
from sandlot.backends.kubernetes.publishing import Publisher
from sandlot.backends.kubernetes.publishing.advertised import advertised_registry
from sandlot.backends.kubernetes.publishing.publisher import Progress, is_published
from sandlot.backends.kubernetes.registry.names import Repository, parse_repository
from sandlot.daemon_binary import find_daemon
from sandlot.errors import Unsupported
from sandlot.spec import Spec


class Images(Protocol):
    """Where nodes find images."""

    async def start(self, api: Api) -> None:
        """Called once, before anything else."""

    async def daemon(self) -> str:
        """The image that holds the daemon as `/sandlotd`. Raises Unsupported where there is none."""

    async def reference(self, spec: Spec) -> str:
        """What a node shall pull for this spec. Raises ImageNotFound, ImageInvalid, Unsupported, ..."""

    async def aclose(self) -> None:
        """Idempotent."""


class PublishedImages:
    """References to registries as they stand; images of this machine by way of a registry, into which they are pushed once."""

    def __init__(
        self, registry: str | None, cache: Path, progress: Progress | None = None, *, notice: Notice = log_notice
    ) -> None:
        """`registry`: `HOST[:PORT][/PATH]`; None: the one that the cluster advertises, if any."""
        self._named = None if registry is None else parse_repository(registry)
        self._cache, self._progress, self._notice = cache, progress, notice
        self._publisher: Publisher | None = None
        self._unread: ApiDenied | None = None

    async def start(self, api: Api) -> None:
        place: tuple[Repository, str | None] | None = (self._named, None) if self._named is not None else None
        if place is None:
            try:
                found = await advertised_registry(api)
                place = parse_repository(found.host), found.pulled_from
            except ApiNotFound:
                pass
            except ApiDenied as denied:
                self._unread = denied
        if place is not None:
            publisher = Publisher(place[0], self._cache, pulled_from=place[1], progress=self._progress, notice=self._notice)
            self._publisher = await publisher.__aenter__()

    async def daemon(self) -> str:
        return await self._required("the daemon").publish_daemon(find_daemon())

    async def reference(self, spec: Spec) -> str:
        if is_published(spec.image, spec.layers):
            return spec.image
        return await self._required(repr(spec.image)).publish(spec.image, spec.layers)

    async def aclose(self) -> None:
        if self._publisher is not None:
            await self._publisher.aclose()
            self._publisher = None

    def _required(self, what: str) -> Publisher:
        if self._publisher is None:
            hint = "say registry=HOST[:PORT]/PATH, or push it yourself (sandlot image) and name it by its reference"
            text = f"{what} must be published, and no registry is known that nodes pull from"
            if self._unread is not None:
                text += "; whether the cluster advertises one may not be read (`sandlot manifests --looking` grants it)"
            raise Unsupported(text, hint=hint) from self._unread
        return self._publisher
