"""Reading an image reference: which kind of image, where it lies, which of several."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

from sandlot.errors import ImageInvalid, ImageNotFound

Kind = Literal["host", "dir", "oci", "oci-archive"]

_HINT: Final = "use host, dir:PATH, oci:PATH[@REF], oci-archive:PATH[@REF], or a path"


@dataclass(frozen=True, slots=True)
class Reference:
    """One image reference, resolved against this machine's files."""

    text: str
    """As the caller wrote it; errors name the image by it."""
    kind: Kind
    path: Path
    """Absolute; of no meaning for `host`."""
    ref: str = ""
    """A tag or digest within an OCI layout; empty: the only one there is."""


def parse(text: str) -> Reference:
    """What the text of `Spec.image` refers to; the image itself is not read.

    Raises:
        ImageNotFound: nothing lies at that path (the caller's fault).
        ImageInvalid: there is something, but no image of that kind.
    """
    if text == "host":
        return Reference(text, "host", Path("/"))
    scheme, colon, rest = text.partition(":")
    if colon and scheme in get_args(Kind) and scheme != "host":
        if not rest:
            raise ImageNotFound(f"image {text!r} names no path", hint=_HINT)
        if scheme == "dir":
            return _check(Reference(text, "dir", Path(rest).absolute()))
        path, ref = _split(rest)
        return _check(Reference(text, "oci" if scheme == "oci" else "oci-archive", path, ref))
    path, ref = _split(text)
    return _check(Reference(text, _guess(text, path), path, ref))


def _split(text: str) -> tuple[Path, str]:
    """A path and what follows its `@`; a path that itself holds an `@` and exists is taken whole."""
    whole = Path(text).absolute()
    head, at, ref = text.rpartition("@")
    if not at or not head or whole.exists():
        return whole, ""
    return Path(head).absolute(), ref


def _guess(text: str, path: Path) -> Kind:
    if path.is_dir():
        return "oci" if (path / "oci-layout").is_file() else "dir"
    if path.is_file():
        return "oci-archive"
    if path.exists():
        raise ImageInvalid(f"image {text!r} is neither a directory nor a file", hint=_HINT)
    what = f"image {text!r}: no such file or directory"
    if "/" not in text or not path.parent.is_dir():
        what += "; images are not pulled from registries by the local backend"
    raise ImageNotFound(what, hint=_HINT)


def _check(reference: Reference) -> Reference:
    text, path = reference.text, reference.path
    try:
        exists = path.exists()
    except (OSError, ValueError) as error:
        raise ImageNotFound(f"image {text!r}: {path} cannot be looked at: {error}", hint=_HINT) from error
    if not exists:
        raise ImageNotFound(f"image {text!r}: {path} does not exist", hint=_HINT)
    if reference.kind == "oci-archive":
        if not path.is_file():
            raise ImageInvalid(f"image {text!r}: {path} is not a file", hint="an OCI layout in a folder is oci:PATH")
    elif not path.is_dir():
        raise ImageInvalid(f"image {text!r}: {path} is not a directory", hint="an OCI layout in a tar file is oci-archive:PATH")
    if reference.kind == "dir" and reference.ref:
        raise ImageNotFound(f"image {text!r}: {path} is a directory, which has no @{reference.ref}", hint=_HINT)
    return reference
