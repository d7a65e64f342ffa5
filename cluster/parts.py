"""The parts a cluster is made of, and what each is built from. Versions are in `go/<part>/go.mod` alone."""

from dataclasses import dataclass
from pathlib import Path

from cluster.options import Options

GO = Path(__file__).with_name("go")


@dataclass(frozen=True)
class Patch:
    """One place of a module that is built differently from how it was published."""

    module: str
    file: str
    old: str
    new: str


@dataclass(frozen=True)
class GoPart:
    """Commands of pinned Go modules: those that the `tool` lines of its go.mod name."""

    name: str
    stamps: tuple[str, ...] = ()
    """Variables that carry the version: the module's `-X` targets, with the module that has the version."""

    tags: str = ""
    cgo: bool = False
    patch: Patch | None = None
    extra: tuple[str, ...] = ()
    """More files for the part, by the names `golang.py` knows them."""

    @property
    def source(self) -> Path:
        return GO / self.name


@dataclass(frozen=True)
class DebianPart:
    """Programs out of Debian packages. Unpacked, not installed: no service starts, no user is made, nothing is left."""

    name: str
    files: tuple[tuple[str, str, str], ...]
    """Package, path inside it, path in the part; a directory brings what it holds."""


KUBERNETES = GoPart("kubernetes", ("k8s.io/component-base/version.gitVersion=v{k8s.io/kubernetes}",), extra=("pause",))
CONTAINERD = GoPart(
    "containerd",
    ("github.com/containerd/containerd/v2/version.Version={github.com/containerd/containerd/v2}",),
    tags="no_btrfs,no_zfs,no_devmapper",
)
# Not Debian's: 3.4.23 reports no progress of watches, without which clients' streamed lists fail and are begun again and again.
ETCD = GoPart("etcd", extra=("etcd",))
RUNC = GoPart("runc", ("main.version={github.com/opencontainers/runc}",), tags="seccomp", cgo=True)
KWOK = GoPart("kwok", ("sigs.k8s.io/kwok/pkg/consts.Version=v{sigs.k8s.io/kwok}",), extra=("stages",))
GVISOR = GoPart(
    "gvisor",
    # Its shim insists on a low oom score, which takes CAP_SYS_RESOURCE; containers of many build services do without.
    patch=Patch(
        "gvisor.dev/gvisor",
        "pkg/shim/v1/manager.go",
        "sys.SetOOMScore(cmd.Process.Pid, oomScoreMax); err != nil {",
        "sys.SetOOMScore(cmd.Process.Pid, oomScoreMax); err != nil && !os.IsPermission(err) {",
    ),
    extra=("gvisor",),
)
POLICIES = GoPart("policies")
DEBIAN = DebianPart(
    "debian",
    (
        ("docker-registry", "usr/bin/docker-registry", "bin/docker-registry"),
        ("containernetworking-plugins", "usr/lib/cni", "cni"),
    ),
)

Part = GoPart | DebianPart


def parts(options: Options) -> tuple[Part, ...]:
    """What a cluster with these options needs."""
    usual = (DEBIAN, KUBERNETES, ETCD, CONTAINERD, RUNC, KWOK)
    return usual + (GVISOR,) * ("gvisor" in options.runtimes) + (POLICIES,) * options.policies
