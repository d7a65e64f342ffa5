"""Image references resolved to directories: what is unpacked already is found at once, what is not is unpacked once."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal, Protocol

from sandlot.backends.local.images.cache import LayerCache, LayerKey, directory_mode, keys
from sandlot.backends.local.images.layers import LayerReader
from sandlot.errors import BadRequest, Capacity, SandboxFileError, SandboxNoSpace
from sandlot.images import oci
from sandlot.images.blobs import Blobs, read_layer
from sandlot.images.layout import as_image_errors, read_image
from sandlot.images.reference import Reference, parse
from sandlot.images.tarstream import Malformed
from sandlot.limits import MAX_LAYER_BYTES, MAX_LAYER_INODES
from sandlot.protocol.requests import Entry
from sandlot.sandbox.trees import Item, Piece

_log = logging.getLogger(__name__)

_REMEMBERED: Final = 256  # images whose documents need not be read again


@dataclass(frozen=True, slots=True)
class Image:
    """An image that lies ready to be mounted."""

    kind: Literal["host", "layers"]
    layers: tuple[Path, ...] = ()
    """Lowest first."""
    env: tuple[str, ...] = ()
    workdir: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True)
class Unpacked:
    """One step of unpacking, for whoever shows progress."""

    image: str
    layer: int
    """From 1."""
    layers: int
    bytes: int
    """Of the layer's files, so far."""
    done: bool


Progress = Callable[[Unpacked], None]
"""Called from a worker thread, some hundred times a second: it must be quick."""


class Tree(Protocol):
    """A sandbox that writes to one directory."""

    async def clear(self) -> None:
        """Remove everything in it."""

    async def fill(self, items: Callable[[], Iterator[Item]]) -> None:
        """Write entries and their data, taken off the event loop. Raises what a file operation in a sandbox raises."""


OpenTree = Callable[[Path], AbstractAsyncContextManager[Tree]]


class ImageStore:
    """Resolves image references. Layers are kept in `cache`, each unpacked at most once at a time over all processes."""

    def __init__(self, cache: Path, open_tree: OpenTree, progress: Progress | None = None) -> None:
        self._cache = LayerCache(cache)
        self._path = cache
        self._open_tree = open_tree
        self._progress = progress or _log_progress
        self._known: dict[str, tuple[object, Image, list[LayerKey]]] = {}

    async def resolve(self, text: str) -> Image:
        """The image of a reference, unpacked.

        Raises:
            ImageNotFound, ImageInvalid: with the reference and what is wrong (the caller's fault).
            Unsupported: a layer compressed with zstd, and no package for it.
            Capacity: no room for the layers below the cache directory.
        """
        if text == "host":
            return Image("host")
        reference = parse(text)
        if reference.kind == "dir":
            return Image("layers", (reference.path,))
        known = self._remembered(reference)
        return known if known is not None else await self._unpack(reference)

    async def sweep(self) -> list[str]:
        """Remove what killed processes left half unpacked; what somebody is unpacking now stays. Returns the digests."""
        removed = []
        for digest, partial_path in self._cache.abandoned():
            with self._cache.claimed(digest) as ours:
                if ours:
                    async with self._open_tree(partial_path) as tree:
                        await tree.clear()
                    partial_path.rmdir()
                    removed.append(digest)
        return removed

    # --- what is known ------------------------------------------------------------------------------------------------
    def _remembered(self, reference: Reference) -> Image | None:
        """From memory, when neither the image's index nor its unpacked layers have changed."""
        entry = self._known.get(reference.text)
        if entry is None:
            return None
        state, image, stack = entry
        if state != _state(reference) or [self._cache.find(key) for key in stack] != list(image.layers):
            del self._known[reference.text]
            return None
        return image

    def _remember(self, reference: Reference, state: object, image: Image, stack: list[LayerKey]) -> None:
        while len(self._known) >= _REMEMBERED:
            del self._known[next(iter(self._known))]
        self._known[reference.text] = (state, image, stack)

    # --- what is not --------------------------------------------------------------------------------------------------
    async def _unpack(self, reference: Reference) -> Image:
        name = reference.text
        with as_image_errors(name):
            state = _state(reference)
            documents = await asyncio.to_thread(read_image, reference)
            stack = keys(documents.config.rootfs.diff_ids)
            paths = await self._layers(name, documents.blobs, documents.manifest.layers, stack)
        run = documents.config.config or oci.RunConfig()
        image = Image("layers", tuple(paths), tuple(run.env or ()), run.working_dir or "", run.user or "")
        self._remember(reference, state, image, stack)
        return image

    async def _layers(self, name: str, blobs: Blobs, layers: Sequence[oci.Descriptor], stack: Sequence[LayerKey]) -> list[Path]:
        """Every layer's directory, lowest first; those that are missing are unpacked one after another."""
        self._cache.prepare()
        paths: list[Path] = []
        for number, (layer, key) in enumerate(zip(layers, stack, strict=True), start=1):
            path = self._cache.find(key)
            while path is None:
                async with self._cache.locked(key) as ours:
                    if ours:
                        tell = partial(Unpacked, name, number, len(layers))
                        await self._unpack_layer(blobs, layer, key, paths, tell)
                path = self._cache.find(key)
            paths.append(path)
        return paths

    async def _unpack_layer(
        self, blobs: Blobs, layer: oci.Descriptor, key: LayerKey, lower: list[Path], tell: Callable[[int, bool], Unpacked]
    ) -> None:
        reader = LayerReader(partial(directory_mode, lower), MAX_LAYER_INODES)
        count = 0

        def items() -> Iterator[Item]:
            nonlocal count
            for item in reader.entries(read_layer(blobs, layer, key.diff_id, limit_bytes=MAX_LAYER_BYTES)):
                if isinstance(item, Entry):
                    yield item
                    continue
                count += len(item.data)
                self._progress(tell(count, False))
                yield Piece(item.at, item.data)

        self._progress(tell(0, False))
        async with self._open_tree(self._cache.partial(key)) as tree:
            await tree.clear()
            try:
                await tree.fill(items)
            except BaseException as error:
                await asyncio.shield(tree.clear())
                if isinstance(error, SandboxNoSpace):
                    hint = "free some, or name another place with SANDLOT_CACHE"
                    raise Capacity(f"no room to unpack layer {layer.digest} below {self._path}", hint=hint) from error
                # What is asked of the daemon here is the layer's own wish, so also a request that makes no sense is.
                if isinstance(error, (SandboxFileError, BadRequest)):
                    raise Malformed(f"layer {layer.digest} cannot be unpacked: {error}") from error
                raise
        self._cache.publish(key, leans_on_lower=reader.leans_on_lower)
        self._progress(tell(count, True))


def _state(reference: Reference) -> object:
    """What changes when the image at this path does."""
    path = reference.path / "index.json" if reference.kind == "oci" else reference.path
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return None
    return reference.path, found.st_ino, found.st_size, found.st_mtime_ns


def _log_progress(step: Unpacked) -> None:
    if step.done:
        _log.info("%s: layer %d of %d unpacked, %d bytes", step.image, step.layer, step.layers, step.bytes)
    elif step.bytes == 0:
        _log.info("%s: unpacking layer %d of %d", step.image, step.layer, step.layers)
