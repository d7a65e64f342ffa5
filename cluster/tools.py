"""The programs of a cluster and where each lies: made by `build.py`, used by everything else."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Tools:
    """One directory for each part that was built."""

    parts: Mapping[str, Path]

    def path(self, program: str) -> Path:
        """Raises LookupError when no part has it: the part was not asked for."""
        for top in self.parts.values():
            if (found := top / "bin" / program).exists():
                return found
        raise LookupError(f"{program} is in none of the parts {', '.join(self.parts)}")

    @property
    def cni(self) -> Path:
        """The directory of the network plugins."""
        return self.parts["debian"] / "cni"

    @property
    def kwok_stages(self) -> Path:
        return self.parts["kwok"] / "stages.yaml"

    @property
    def search_path(self) -> str:
        """For the environment of what is started: containerd looks for its shim and for runc there."""
        own = [str(top / "bin") for top in self.parts.values()]
        return ":".join([*own, "/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"])
