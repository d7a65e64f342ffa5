"""The registry that a cluster says is its own: KEP-1755, "Communicating a local registry"."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import msgspec

from sandlot.errors import BadRequest

CONFIG_MAP: Final = "/api/v1/namespaces/kube-public/configmaps/local-registry-hosting"
_KEY: Final = "localRegistryHosting.v1"
_T = TypeVar("_T")


class Reads(Protocol):
    """The one call of the API client that is needed here."""

    async def get(self, path: str, shape: type[_T]) -> _T: ...


@dataclass(frozen=True, slots=True)
class Advertised:
    """Where this client pushes, and by what name nodes pull."""

    host: str
    pulled_from: str


class _ConfigMap(msgspec.Struct, frozen=True):
    data: dict[str, str] = {}


class _Hosting(msgspec.Struct, frozen=True, rename="camel"):
    host: str = ""
    host_from_container_runtime: str = ""


async def advertised_registry(api: Reads) -> Advertised:
    """What the cluster says. Raises `ApiNotFound` when it says nothing, and as `parse_hosting`."""
    return parse_hosting((await api.get(CONFIG_MAP, _ConfigMap)).data.get(_KEY, ""))


def parse_hosting(text: str) -> Advertised:
    """The registry that a `localRegistryHosting.v1` document names.

    Raises:
        BadRequest: it names none (the cluster administrator's fault).
    """
    import yaml

    try:
        hosting = msgspec.convert(yaml.safe_load(text) or {}, _Hosting)
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise BadRequest(f"the cluster's local-registry-hosting cannot be read: {error}", hint=_HINT) from error
    if not hosting.host:
        raise BadRequest("the cluster's local-registry-hosting names no host", hint=_HINT)
    return Advertised(hosting.host, hosting.host_from_container_runtime or hosting.host)


_HINT: Final = "say --registry HOST[:PORT]/PATH"
