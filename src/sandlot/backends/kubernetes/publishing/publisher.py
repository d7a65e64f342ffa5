"""Puts images of this machine into a registry: what is there is found, what is missing is sent, callers share the work."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Final, TypeVar

from sandlot.backends.kubernetes.noticing import Notice, log_notice
from sandlot.backends.kubernetes.publishing.daemon import RUN, daemon_layer, daemon_state
from sandlot.backends.kubernetes.publishing.images import Composed, Document, as_stored, compose
from sandlot.backends.kubernetes.publishing.packing import Layer, Packer
from sandlot.backends.kubernetes.registry import Blob, Registry, Repository
from sandlot.errors import BadRequest, Closed, Unsupported, WriteFailed
from sandlot.images.blobs import Blobs, blob_name, read_document
from sandlot.images.layout import Documents, as_image_errors, read_image
from sandlot.images.oci import Descriptor
from sandlot.images.reference import Reference, parse

PACKED_AT_ONCE: Final = 2  # each uses a processor
_LOCAL_SCHEMES: Final = ("dir:", "oci:", "oci-archive:")
_PATHS: Final = ("/", "./", "../")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of publishing, for whoever shows progress."""

    image: str
    what: str
    """`packing` a directory, or `sending` a blob."""
    part: str
    """The directory, or the blob's digest."""
    bytes: int = 0
    """Sent so far of this part."""
    size: int | None = None
    """Of the whole part, as far as it is known."""
    done: bool = False


Progress = Callable[[Step], None]
"""Called on the event loop with every megabyte or so: it must be quick."""


def is_published(image: str, layers: Sequence[str] = ()) -> bool:
    """Whether nodes can pull this as it is. A reference to a registry with nothing laid over it can be; what lies on this
    machine cannot.

    Raises:
        BadRequest: `host`, which is this machine's own system and no image.
    """
    if image == "host":
        hint = "name an image of a registry, or dir:, oci: or oci-archive: to have one published"
        raise BadRequest("image 'host' is this machine's own system, which no node has", hint=hint)
    local = image.startswith((*_LOCAL_SCHEMES, *_PATHS))
    return not local and not layers


class Publisher:
    """Publishes to one registry. Use it as `async with`; all methods may be called concurrently.

    An image or directory is published as it was when it was first asked for; a new publisher looks again.
    """

    def __init__(
        self,
        registry: Repository,
        cache: Path,
        *,
        pulled_from: str | None = None,
        progress: Progress | None = None,
        packer: Packer | None = None,
        notice: Notice = log_notice,
    ) -> None:
        """Args:
        registry: where to push; images come below its path, or below `sandlot` when it has none.
        cache: where packed directories lie for a moment, and what is known of them for good.
        pulled_from: `host[:port]` by which nodes know the same registry; None: the same.
        notice: told of requests that failed and are tried again.
        """
        base = registry if registry.path else registry.below("sandlot")
        self._repositories = {name: base.below(name) for name in ("tasks", "daemon")}
        self._pulled_from = pulled_from or registry.host
        self._packer = packer or Packer(cache / "published")
        self._progress, self._notice = progress or _nobody, notice
        self._stack = AsyncExitStack()
        self._registries: dict[str, Registry] = {}
        self._work: dict[Hashable, asyncio.Task[Any]] = {}
        self._packing = asyncio.Semaphore(PACKED_AT_ONCE)

    async def __aenter__(self) -> Publisher:
        for name, repository in self._repositories.items():
            self._registries[name] = await self._stack.enter_async_context(Registry(repository, notice=self._notice))
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Stop what is under way. What was sent stays in the registry. Idempotent."""
        tasks = [task for task in self._work.values() if not task.done()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self._registries = {}
        await self._stack.aclose()

    async def publish(self, image: str, layers: Sequence[str] = ()) -> str:
        """The reference by which nodes pull this image with these directories over it; published when it has to be.

        Raises:
            ImageNotFound, ImageInvalid, BadRequest: by the caller's doing.
            Unsupported: layers over an image that lies in a registry.
            Denied: the registry refuses.
            RegistryFault, Throttled: retriable; what was sent is not sent again.
        """
        if is_published(image, layers):
            return image
        return await self._once(("image", image, *layers), lambda: self._publish(image, layers))

    async def publish_daemon(self, binary: Path) -> str:
        """The reference of the image that holds this daemon and nothing else. Raises as `publish`."""
        return await self._once(("daemon", binary), lambda: self._publish_daemon(binary))

    async def push_image(self, registry: Registry, tag: str, image: str, layers: Sequence[str] = ()) -> str:
        """Push an image of this machine to a place and tag of the caller's choice; its digest."""
        composed = await self._send_image(registry, image, layers)
        await registry.push_manifest(tag, composed.manifest.media_type, composed.manifest.raw)
        return composed.manifest.digest

    async def push_daemon(self, registry: Registry, tag: str, binary: Path) -> str:
        """Push the daemon's image to a place and tag of the caller's choice; its digest."""
        composed = await self._send_daemon(registry, binary)
        await registry.push_manifest(tag, composed.manifest.media_type, composed.manifest.raw)
        return composed.manifest.digest

    # --- sharing ----------------------------------------------------------------------------------------------------------
    async def _once(self, key: Hashable, work: Callable[[], Awaitable[_T]]) -> _T:
        """The result of `work`, done at most once for a key as long as it does not fail; it outlives who waits for it."""
        if not self._registries:
            raise Closed("the publisher is not open")
        task = self._work.get(key)
        if task is None:
            task = self._work[key] = asyncio.ensure_future(_awaited(work))
            task.add_done_callback(partial(self._forget_failed, key))
        result: _T = await asyncio.shield(task)
        return result

    def _forget_failed(self, key: Hashable, task: asyncio.Task[Any]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._work.pop(key, None)

    # --- images -----------------------------------------------------------------------------------------------------------
    async def _publish(self, image: str, layers: Sequence[str]) -> str:
        return await self._name("tasks", await self._send_image(self._registries["tasks"], image, layers))

    async def _publish_daemon(self, binary: Path) -> str:
        return await self._name("daemon", await self._send_daemon(self._registries["daemon"], binary))

    async def _name(self, kind: str, composed: Composed) -> str:
        registry = self._registries[kind]
        await registry.push_manifest(composed.tag, composed.manifest.media_type, composed.manifest.raw)
        return f"{self._pulled_from}/{registry.repository.path}@{composed.manifest.digest}"

    async def _send_image(self, registry: Registry, image: str, layers: Sequence[str]) -> Composed:
        """Everything of an image but its manifest, sent."""
        if not image.startswith((*_LOCAL_SCHEMES, *_PATHS)):
            hint = "copy the image to an OCI layout first (skopeo copy docker://... oci-archive:...)"
            raise Unsupported(f"directories cannot be laid over {image!r}, which lies in a registry", hint=hint)
        with as_image_errors(image):
            reference = await asyncio.to_thread(parse, image)
            base = None if reference.kind == "dir" else await asyncio.to_thread(read_image, reference)
        composed = await self._composed(registry, reference, base, layers)
        if not await registry.has_manifest(composed.manifest.digest):
            if base is not None:
                for layer in base.manifest.layers:
                    await self._send_base_layer(registry, image, base.blobs, layer)
            await self._send_document(registry, composed.config)
        return composed

    async def _composed(
        self, registry: Registry, reference: Reference, base: Documents | None, layers: Sequence[str]
    ) -> Composed:
        if base is not None and not layers:
            raw = await asyncio.to_thread(read_document, base.blobs, base.manifest.config)
            return as_stored(base.found, raw)
        directories = [*([reference.path] if base is None else []), *map(_absolute, layers)]
        packed = await asyncio.gather(*(self._send_directory(registry, reference.text, path) for path in directories))
        if base is None:
            return compose(packed)
        raw = await asyncio.to_thread(read_document, base.blobs, base.manifest.config)
        return compose(packed, base=(base.manifest, raw))

    async def _send_directory(self, registry: Registry, image: str, directory: Path) -> Layer:
        key = ("directory", registry.repository, directory)
        return await self._once(key, lambda: self._pack_and_send(registry, image, directory))

    async def _pack_and_send(self, registry: Registry, image: str, directory: Path) -> Layer:
        known = await asyncio.to_thread(self._packer.known, directory)
        if known is not None and await registry.has_blob(known.digest):
            return known
        async with self._packing, AsyncExitStack() as stack:
            self._progress(Step(image, "packing", str(directory)))
            packing = self._packer.pack(directory)
            packed = await asyncio.to_thread(packing.__enter__)
            stack.push(packing)
            blob = Blob(packed.layer.digest, packed.layer.size, partial(_open, packed.file))
            await self._send_blob(registry, image, str(directory), blob)
        return packed.layer

    async def _send_base_layer(self, registry: Registry, image: str, blobs: Blobs, layer: Descriptor) -> None:
        with as_image_errors(image):
            size = layer.size if layer.size >= 0 else await asyncio.to_thread(_size_of, blobs, layer)
        blob = Blob(layer.digest, size, partial(blobs.open, blob_name(layer.digest)))
        key = ("blob", registry.repository, layer.digest)
        await self._once(key, lambda: self._send_blob(registry, image, layer.digest, blob))

    async def _send_document(self, registry: Registry, document: Document) -> None:
        raw = document.raw
        await registry.push_blob(Blob(document.digest, len(raw), lambda: io.BytesIO(raw)))

    async def _send_daemon(self, registry: Registry, binary: Path) -> Composed:
        state = await asyncio.to_thread(daemon_state, binary)
        known = await asyncio.to_thread(self._packer.recalled, state)
        if known is not None:
            composed = compose([known], run=RUN)
            if await registry.has_manifest(composed.manifest.digest):
                return composed
        layer, packed = await asyncio.to_thread(daemon_layer, binary)
        composed = compose([layer], run=RUN)
        with suppress(WriteFailed):  # then it is packed again next time
            await asyncio.to_thread(self._packer.remember, state, layer)
        if not await registry.has_manifest(composed.manifest.digest):
            blob = Blob(layer.digest, layer.size, lambda: io.BytesIO(packed))
            await self._send_blob(registry, str(binary), "sandlotd", blob)
            await self._send_document(registry, composed.config)
        return composed

    async def _send_blob(self, registry: Registry, image: str, part: str, blob: Blob) -> None:
        count = 0

        def sent(more: int) -> None:
            nonlocal count
            count += more
            self._progress(Step(image, "sending", part, min(count, blob.size), blob.size))

        if await registry.push_blob(blob, sent):
            self._progress(Step(image, "sending", part, blob.size, blob.size, done=True))


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(path))


def _open(path: Path) -> BinaryIO:
    return open(path, "rb")


def _size_of(blobs: Blobs, layer: Descriptor) -> int:
    with blobs.open(blob_name(layer.digest)) as file:
        return sum(map(len, iter(lambda: file.read(1_048_576), b"")))


async def _awaited(work: Callable[[], Awaitable[_T]]) -> _T:
    return await work()


def _nobody(_step: Step) -> None:
    """Nobody shows progress."""
