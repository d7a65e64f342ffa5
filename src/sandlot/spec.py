"""What is wanted of a sandbox: one frozen value, checked when it is made."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Final, Literal

from sandlot.errors import BadRequest
from sandlot.podoptions import PodOptions

Network = Literal["none", "host"]
LimitsMode = Literal["require", "best-effort"]
Owner = Literal["attached", "leased"]
UpperKind = Literal["tmpfs", "disk"]

_SIZE = re.compile(r"^\s*(\d+(?:\.\d+)?)\s*(B|KiB|MiB|GiB|TiB|kB|KB|MB|GB|TB)?\s*$")
_UNIT = {None: 1, "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
_UNIT |= {"kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_size(value: int | str, what: str = "size") -> int:
    """Bytes from an int or from text such as "512MiB" or "2 GB".

    Raises:
        BadRequest: negative, not a number, or an unknown unit (the caller's fault).
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise BadRequest(f"{what} must be a number of bytes or text like '512MiB', not {value!r}")
    if isinstance(value, int):
        if value < 0:
            raise BadRequest(f"{what} must not be negative, got {value}")
        return value
    match = _SIZE.match(value)
    if match is None:
        raise BadRequest(f"{what} {value!r} is not a size", hint="write bytes, or a number with KiB, MiB, GiB, kB, MB or GB")
    return int(float(match[1]) * _UNIT[match[2]])


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Spec:
    """One wanted sandbox.

    Two specs that are equal can be served by the same warm sandbox. Specs can be pickled.
    """

    image: str = "host"
    """`host` (an allow-list of this machine's system directories), `dir:PATH`, `oci:PATH[@REF]` (an OCI layout folder) or
    `oci-archive:PATH[@REF]` (a tar of one). A bare path is taken for what is found there."""

    layers: tuple[str, ...] = ()
    """Directories laid over the image, lowest first; never written to. For environments frozen from an earlier sandbox."""

    cpu: float | None = None
    """CPUs, as a quota over 100 ms. None: no limit."""

    memory: int | str | None = None
    """Bytes (or text) that all commands together may use; files in the sandbox's tmpfs count. None: no limit."""

    disk: int | str = "1GiB"
    """Bytes that may be written into the sandbox's own layer."""

    pids: int | None = 4096
    """Processes and threads at once. None: no limit."""

    shm: int | str | None = None
    """Size of /dev/shm in bytes. None: half of `memory`, or 64 MiB without a memory limit."""

    upper: UpperKind = "tmpfs"
    """Where written files live: `tmpfs` (memory, fast to reset) or `disk`."""

    network: Network = "none"
    """`none`: a loopback of its own. `host`: this machine's network, for trusted set-up steps only."""

    env: Mapping[str, str] = field(default_factory=dict)
    """Over the image's own environment; the client's environment is never passed."""

    workdir: str | None = None
    """None: the image's WORKDIR, else `/`."""

    user: str | int | None = None
    """Name, id, `name:group` or `uid:gid`. None: the image's USER, else root."""

    hostname: str = "sandbox"
    read_only: bool = False
    """The root file system is read-only; /tmp, /dev/shm and /run stay writable."""

    limits: LimitsMode = "require"
    """`require`: creation fails when a limit cannot be enforced. `best-effort`: each result records what was not."""

    labels: Mapping[str, str] = field(default_factory=dict)

    pod: PodOptions = field(default_factory=PodOptions)
    """For sandboxes that are pods: where they may run and what else they have. Other backends ignore it."""

    _hash: int = field(init=False, compare=False, default=0)
    """Computed once, when it is first asked for: pools look specs up all the time, and bursts never."""

    def __post_init__(self) -> None:
        self._check()
        for name in ("memory", "disk", "shm"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, parse_size(value, name))
        if self.memory_bytes is not None and self.memory_bytes < 4 * 2**20:
            raise BadRequest(f"memory must be at least 4 MiB, got {self.memory} bytes")
        if self.cpu is not None:
            object.__setattr__(self, "cpu", float(self.cpu))
        object.__setattr__(self, "env", MappingProxyType(dict(self.env)))
        object.__setattr__(self, "labels", MappingProxyType(dict(self.labels)))
        object.__setattr__(self, "layers", tuple(self.layers))

    def _check(self) -> None:
        if not self.image:
            raise BadRequest("image must not be empty", hint="use image='host' for this machine's own system")
        if self.cpu is not None and not 0.01 <= self.cpu <= 4096:
            raise BadRequest(f"cpu must be between 0.01 and 4096, got {self.cpu}")
        layers: object = self.layers
        if isinstance(layers, str):
            raise BadRequest(f"layers must be a sequence of directories, not the text {layers!r}")
        if self.pids is not None and not 1 <= self.pids <= 4_194_304:
            raise BadRequest(f"pids must be between 1 and 4194304, got {self.pids}")
        for key, value in self.env.items():
            if not key or "=" in key or "\0" in key or "\0" in value:
                raise BadRequest(f"environment variable {key!r} has an impossible name or a NUL byte")

    @property
    def memory_bytes(self) -> int | None:
        return None if self.memory is None else parse_size(self.memory, "memory")

    @property
    def disk_bytes(self) -> int:
        return parse_size(self.disk, "disk")

    @property
    def shm_bytes(self) -> int:
        """Bytes of /dev/shm: as asked, else half of the memory limit, else 64 MiB (what container engines give)."""
        if self.shm is not None:
            return parse_size(self.shm, "shm")
        return 64 * 2**20 if self.memory_bytes is None else self.memory_bytes // 2

    @property
    def key(self) -> str:
        """A stable text: equal for equal specs, fit for a dictionary key or a label."""
        return ";".join(f"{name}={_plain(value)}" for name, value in self._values().items())

    def __hash__(self) -> int:
        if not self._hash:
            object.__setattr__(self, "_hash", hash(self.key))
        return self._hash

    def __repr__(self) -> str:
        """What differs from the defaults."""
        told = [f"{name}={value!r}" for name, value in self._values().items() if value != _DEFAULTS[name]]
        return f"Spec({', '.join(told)})"

    def __reduce__(self) -> tuple[Callable[..., Spec], tuple[dict[str, object]]]:
        return _from_values, (self._values(),)

    def _values(self) -> dict[str, object]:
        values = {one.name: getattr(self, one.name) for one in fields(self) if one.init}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


def _from_values(values: dict[str, object]) -> Spec:
    return Spec(**values)  # type: ignore[arg-type]


def _plain(value: object) -> object:
    if isinstance(value, PodOptions):
        return value.key
    return sorted(value.items()) if isinstance(value, Mapping) else value


_DEFAULTS: Final = Spec()._values()
