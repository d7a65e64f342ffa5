"""Runs the shared suite against pods, and holds the list of differences.

Every check runs once, with links by dial-in and the daemon from an image volume, and a handful of them in each other way.
With `SANDLOT_TEST_FULL=1` (`make test-full`) every check runs in every way that links and the daemon can come.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
import pytest_asyncio

import sandlot
from cluster import Cluster
from sandlot.backends.kubernetes import ClusterOptions
from sandlot.backends.kubernetes.options import Connect, Delivery
from sandlot.daemon_binary import find_daemon
from sandlot.testing.conformance import MakeBox
from tests.cluster.pods import lasting_namespace
from tests.images.build import image


@dataclass(frozen=True, slots=True)
class Ways:
    """One way for links, one for the daemon, and what runs the containers."""

    connect: Connect
    delivery: Delivery
    runtime: str | None = None
    """A RuntimeClass; None: the node's usual one."""

    def __str__(self) -> str:
        return "+".join(filter(None, (self.connect, self.delivery, self.runtime)))


FIRST: Final = Ways("dial-in", "image")
OTHERS: Final = (Ways("dial-out", "init"), Ways("exec-bridge", "hostpath"))
UNDER_GVISOR: Final = Ways("dial-in", "image", "gvisor")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that pods cannot do, and the checks that show it."""

    reason: str
    checks: tuple[str, ...]
    at_times: tuple[str, ...] = ()
    """Those that show it only where something runs out before their own time is over."""


DIFFERENCES: Final[tuple[Difference, ...]] = (
    Difference(
        "pids: only a node's own configuration limits the processes of a pod; the number asked for is not enforced",
        ("test_usage_numbers_are_the_sandboxs_own",),
    ),
    Difference(
        "network: a pod has the cluster's network, which its policies restrict (`sandlot manifests`)",
        ("test_network_is_a_loopback_of_its_own",),
    ),
    Difference(
        "freezing: needs a cgroup that may be written, which a container does not have",
        ("test_frozen_processes_stand_still_and_go_on_when_thawed",),
    ),
)
"""At most five, and none about output, time limits or files."""

GVISOR: Final = (
    Difference(
        "gVisor is one process to the node: memory or processes that run out end the sandbox (SandboxGone), not the command"
        " alone",
        ("test_memory_limit_kills_the_command_and_says_so",),
        at_times=("test_process_limit_stops_a_fork_bomb",),
    ),
)
"""On top of those, under gVisor: four in all."""


_FULL: Final = os.environ.get("SANDLOT_TEST_FULL") == "1"
collect_ignore = ["test_ways.py"] if _FULL else []


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each check in one way, or in all; `test_ways` has those that run in every other way."""
    if "ways" not in metafunc.fixturenames:
        return
    wanted: tuple[Ways, ...] = OTHERS if metafunc.module.__name__.endswith(".test_ways") else (FIRST,)
    if _FULL:
        wanted = (FIRST, *OTHERS, UNDER_GVISOR)
    metafunc.parametrize("ways", wanted, ids=str, scope="package")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A listed difference must really differ: it is expected to fail, and a pass is an error."""
    for item in items:
        if "cluster/conformance" not in item.nodeid or not isinstance(item, pytest.Function):
            continue
        ways = item.callspec.params.get("ways") if hasattr(item, "callspec") else None
        for one in (*DIFFERENCES, *GVISOR) if ways == UNDER_GVISOR else DIFFERENCES:
            if item.originalname in (*one.checks, *one.at_times):
                strict = item.originalname in one.checks
                item.add_marker(pytest.mark.xfail(reason=one.reason, strict=strict))


@pytest.fixture(scope="session")
def on_the_node() -> Iterator[Path]:
    """A directory of the real node, which is this machine, with the daemon in it."""
    path = Path("/var/tmp") / f"sandlot-node-{os.getpid()}"
    path.mkdir(mode=0o755)
    try:
        shutil.copy(find_daemon(), path / "sandlotd")
        (path / "sandlotd").chmod(0o755)
        yield path
    finally:
        shutil.rmtree(path)


@pytest.fixture(scope="package")
def space(cluster: Cluster, ways: Ways) -> Iterator[str]:
    """A namespace for the checks in one way."""
    with lasting_namespace(cluster) as name:
        yield name


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def provider(cluster: Cluster, ways: Ways, space: str, on_the_node: Path) -> AsyncIterator[sandlot.Provider]:
    """One for all checks in one way; when they have ended it must leave nothing."""
    options = ClusterOptions(
        namespace=space,
        connect=ways.connect,
        delivery=ways.delivery,
        advertise=cluster.gateway if ways.connect == "dial-out" else None,
        daemon_path=str(on_the_node),
    )
    async with sandlot.kubernetes(
        kubeconfig=cluster.kubeconfig, registry=f"{cluster.registry}/sandlot", options=options
    ) as one:
        yield one
        closing = await one.aclose()
    assert closing.left == ()
    with cluster.api() as api:
        assert api.get(f"/api/v1/namespaces/{space}/pods")["items"] == []


@pytest_asyncio.fixture(loop_scope="package")
async def make_box(cluster: Cluster, provider: sandlot.Provider, ways: Ways) -> AsyncIterator[MakeBox]:
    """See `sandlot.testing.conformance`. Pods cannot limit processes, so the suite's limits are asked for as best effort."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(image_name: str = "busybox", /, **fields: object) -> sandlot.Sandbox:
            reference = image_name if ":" in image_name else image(image_name)
            node = {"kubernetes.io/hostname": cluster.real_node}
            pod = sandlot.PodOptions(node_selector=node, runtime_class=ways.runtime)
            wanted = {"limits": "best-effort", "pod": pod, **fields}
            spec = sandlot.Spec(image=reference, **wanted)  # type: ignore[arg-type]
            return await stack.enter_async_context(await provider.create(spec))

        yield make
