"""References to images in registries: `host[:port]/path[:tag][@digest]`, and which registries speak plain HTTP."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Final

from sandlot.errors import BadRequest

# OCI Distribution Specification 1.1, "Pulling manifests": what a name and a tag look like.
_PART: Final = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH: Final = re.compile(rf"{_PART}(?:/{_PART})*\Z")
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_HOST: Final = re.compile(r"(?:\[[0-9a-fA-F:]+\]|[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?)(?::[0-9]{1,5})?\Z")
_MAX_PATH_CHARS: Final = 255
_HINT: Final = "write HOST[:PORT]/PATH, such as 127.0.0.1:5000/sandlot"


@dataclass(frozen=True, slots=True)
class Repository:
    """A place for images in a registry."""

    host: str
    """With its port, as image references have it."""
    path: str
    plain: bool = False
    """Plain HTTP: on a loopback address, or because the caller wrote `http://`."""

    @property
    def origin(self) -> str:
        return f"{'http' if self.plain else 'https'}://{self.host}"

    @property
    def text(self) -> str:
        """As references in pods have it."""
        return f"{self.host}/{self.path}"

    def below(self, name: str) -> Repository:
        """Another repository, deeper in the same registry."""
        return Repository(self.host, _checked_path(f"{self.path}/{name}" if self.path else name), self.plain)


@dataclass(frozen=True, slots=True)
class Target:
    """One image to be: its repository and the tag that shall name it."""

    repository: Repository
    tag: str

    @property
    def text(self) -> str:
        return f"{self.repository.text}:{self.tag}"


def parse_repository(text: str) -> Repository:
    """`[http://|https://]HOST[:PORT][/PATH]`. The path may be empty: then `below` names one.

    Raises:
        BadRequest: it is not of that form.
    """
    scheme, separator, rest = text.partition("://")
    if not separator:
        scheme, rest = "", text
    if scheme not in ("", "http", "https"):
        raise BadRequest(f"registry {text!r}: {scheme!r} is no way to reach one", hint=_HINT)
    host, _, path = rest.rstrip("/").partition("/")
    if _HOST.match(host) is None or not ("." in host or ":" in host or host == "localhost"):
        raise BadRequest(f"registry {text!r} names no host", hint=_HINT)
    plain = scheme == "http" or (not scheme and _is_loopback(host))
    return Repository(host, _checked_path(path) if path else "", plain)


def parse_target(text: str, *, default_tag: str = "latest") -> Target:
    """`[http://]HOST[:PORT]/PATH[:TAG]`.

    Raises:
        BadRequest: it is not of that form, or has a digest: what an image's digest is follows from what is pushed.
    """
    if "@" in text:
        raise BadRequest(f"image {text!r} has a digest", hint="images are pushed to a tag; the digest is told afterwards")
    head, colon, tag = text.rpartition(":")
    if not colon or "/" in tag:
        head, tag = text, default_tag
    if _TAG.match(tag) is None:
        raise BadRequest(f"image {text!r} has an impossible tag {tag!r}")
    repository = parse_repository(head)
    if not repository.path:
        raise BadRequest(f"image {text!r} names no repository in {repository.host}", hint=_HINT)
    return Target(repository, tag)


def _checked_path(path: str) -> str:
    if _PATH.match(path) is None or len(path) > _MAX_PATH_CHARS:
        raise BadRequest(f"{path!r} is no path of a repository", hint="lower-case letters, digits and . _ - between slashes")
    return path


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if re.search(r":[0-9]+\Z", host) else host
    if name == "localhost":
        return True
    try:
        return ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
