"""What only Kubernetes understands of a wanted sandbox: where its pod may run, and what else its pod shall have."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Final, Literal

from sandlot.errors import BadRequest

PullPolicy = Literal["Always", "IfNotPresent", "Never"]
PodSecurity = Literal["baseline", "restricted"]
_PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
_SECURITIES: Final = ("baseline", "restricted")


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PodOptions:
    """The part of a `Spec` that other backends ignore. Mappings are frozen deeply, so equal options are one warm sandbox.

    What a field holds is what the pod's own field of that meaning holds; nothing here is interpreted but `extra`.
    """

    requests: Mapping[str, str | int | float] = field(default_factory=dict)
    """Resource requests by name, over the defaults: `memory` as its limit (memory cannot be shared out later), `cpu` as its
    limit but at most 100m (which is what the scheduler assumes of pods that say nothing), `ephemeral-storage` none."""

    limits: Mapping[str, str | int | float] = field(default_factory=dict)
    """Further limits by name, such as `nvidia.com/gpu`. `cpu`, `memory` and `disk` of the spec are not repeated here."""

    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, object], ...] = ()
    affinity: Mapping[str, object] = field(default_factory=dict)
    runtime_class: str | None = None
    pull_secrets: tuple[str, ...] = ()
    """Names of secrets in the sandboxes' namespace."""
    pull_policy: PullPolicy = "IfNotPresent"
    annotations: Mapping[str, str] = field(default_factory=dict)
    service_account: str | None = None
    """Whose name the pod bears; its token is mounted in no case."""
    scheduler: str | None = None
    priority_class: str | None = None
    host_users: bool | None = None
    """False: a user namespace of the pod's own, so root inside is nobody on the node. None: as the cluster does it."""
    security: PodSecurity = "baseline"
    """`baseline`: root works as in an ordinary container, without raw sockets and devices. The seccomp profile is the
    cluster's default, which on most is none: then the daemon makes a user namespace of its own, resets in place, tells what
    changed, and puts its own filter on commands. Runtimes' default profile forbids that. `restricted`: what the pod
    security standard of that name asks for; the image's USER or `Spec.user` must then be a number other than 0. There, and
    for root under runtimes' profile, a reset puts back working directory, home and temporary files, if nothing else has
    changed and they are small; else a pool makes a new pod."""

    extra: Mapping[str, object] = field(default_factory=dict)
    """A pod spec that is merged over the finished one, last: mappings key by key, lists of named things (containers,
    volumes, env, ...) by their names, other lists whole; None removes. The task's container is named `task`. What
    Sandlot itself needs cannot be changed this way; that is refused with the field's path."""

    _key: str = field(init=False, compare=False, default="")

    def __post_init__(self) -> None:
        if self.pull_policy not in _PULL_POLICIES:
            raise BadRequest(f"pull_policy is one of {', '.join(_PULL_POLICIES)}, not {self.pull_policy!r}")
        if self.security not in _SECURITIES:
            raise BadRequest(f"security is one of {', '.join(_SECURITIES)}, not {self.security!r}")
        for one in fields(self):
            if one.init:
                object.__setattr__(self, one.name, _frozen(getattr(self, one.name), one.name))
        object.__setattr__(self, "_key", json.dumps(self._values(), sort_keys=True, separators=(",", ":")))

    @property
    def key(self) -> str:
        """A stable text: equal for equal options."""
        return self._key

    def __hash__(self) -> int:
        return hash(self._key)

    def __repr__(self) -> str:
        """What differs from the defaults."""
        told = [f"{name}={value!r}" for name, value in self._values().items() if value != _DEFAULTS[name]]
        return f"PodOptions({', '.join(told)})"

    def __reduce__(self) -> tuple[Callable[..., PodOptions], tuple[dict[str, object]]]:
        return _from_values, (self._values(),)

    def _values(self) -> dict[str, object]:
        return {one.name: thawed(getattr(self, one.name)) for one in fields(self) if one.init}


def _from_values(values: dict[str, object]) -> PodOptions:
    return PodOptions(**values)  # type: ignore[arg-type]


def _frozen(value: object, where: str) -> object:
    """The same value that nobody can change.

    Raises:
        BadRequest: not what JSON can hold.
    """
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise BadRequest(f"{where} has a key that is no text")
        return MappingProxyType({key: _frozen(one, f"{where}.{key}") for key, one in value.items()})
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return tuple(_frozen(one, f"{where}[{at}]") for at, one in enumerate(value))
    raise BadRequest(f"{where} holds {type(value).__name__}, which no pod can have")


def thawed(value: object) -> object:
    """A frozen value as plain dictionaries and lists that may be changed."""
    if isinstance(value, Mapping):
        return {key: thawed(one) for key, one in value.items()}
    return [thawed(one) for one in value] if isinstance(value, tuple) else value


_DEFAULTS: Final = PodOptions()._values()
