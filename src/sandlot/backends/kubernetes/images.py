"""From what a spec calls its image to what a node can pull, and where the image with the daemon is."""

from __future__ import annotations

from typing import Protocol

from sandlot.backends.kubernetes.api import Api
from sandlot.errors import Unsupported
from sandlot.spec import Spec


class Images(Protocol):
    """Where nodes find images."""

    async def start(self, api: Api) -> None:
        """Called once, before anything else."""

    async def reference(self, spec: Spec) -> str:
        """What a node shall pull for this spec. Raises ImageNotFound, ImageInvalid, Unsupported, ..."""

    async def daemon(self) -> str:
        """The image that holds the daemon as `/sandlotd`. Raises Unsupported where there is none."""

    async def aclose(self) -> None:
        """Idempotent."""


class PlainImages:
    """References to registries, as they stand."""

    async def start(self, api: Api) -> None:
        """Nothing is needed."""

    async def reference(self, spec: Spec) -> str:
        if spec.layers or spec.image == "host" or spec.image.startswith(("dir:", "oci:", "oci-archive:", "/", "./", "../")):
            hint = "say registry=, or push the image yourself and name it by its reference"
            raise Unsupported(f"nodes cannot pull {spec.image!r} from this machine", hint=hint)
        return spec.image

    async def daemon(self) -> str:
        raise Unsupported("no image is named that holds the daemon", hint="say daemon_image=; `sandlot image push-daemon` makes one")

    async def aclose(self) -> None:
        """Nothing is held open."""
