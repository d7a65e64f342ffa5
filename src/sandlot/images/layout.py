"""One image of a layout on disk: its documents, checked against each other, and where its blobs are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from sandlot.errors import ImageInvalid, ImageNotFound
from sandlot.images import oci
from sandlot.images.blobs import Archive, Blobs, Folder, read_document, read_file
from sandlot.images.reference import Reference
from sandlot.images.tarstream import Malformed


@dataclass(frozen=True, slots=True)
class Documents:
    """What an image says of itself."""

    blobs: Blobs
    found: oci.Found
    config: oci.Config

    @property
    def manifest(self) -> oci.Manifest:
        return self.found.manifest


def read_image(reference: Reference) -> Documents:
    """The documents of an `oci:` or `oci-archive:` image. Blocks.

    Raises:
        Malformed, LookupError, PermissionError: see `as_image_errors`.
    """
    blobs: Blobs = Folder(reference.path) if reference.kind == "oci" else Archive(reference.path)
    _require_layout(blobs)
    index = oci.decode(oci.Index, read_file(blobs, "index.json"), "index")
    read = partial(read_document, blobs)
    found = oci.find_manifest(index, reference.ref, read)
    return Documents(blobs, found, oci.read_config(found.manifest, read))


@contextmanager
def as_image_errors(name: str) -> Iterator[None]:
    """What reading finds wrong, as the errors that callers of ours get: with the image's name and what to do.

    Raises:
        ImageInvalid, ImageNotFound: the caller's fault.
    """
    try:
        yield
    except Malformed as error:
        raise ImageInvalid(f"image {name!r} is damaged or not an image: {error}", hint="make or copy it again") from error
    except LookupError as error:
        raise ImageNotFound(f"image {name!r}: {error.args[0]}") from error
    except PermissionError as error:
        raise ImageNotFound(f"image {name!r} cannot be read: {error}", hint="check the rights of its files") from error


def _require_layout(blobs: Blobs) -> None:
    try:
        read_file(blobs, "oci-layout")
    except Malformed as error:
        try:
            read_file(blobs, "manifest.json")
        except Malformed:
            raise error from None
        raise Malformed(
            "it is a Docker archive without an OCI layout (`docker save` before version 25); convert it first"
        ) from error
