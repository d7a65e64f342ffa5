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
    """One way for links, and one for the daemon."""

    connect: Connect
    delivery: Delivery

    def __str__(self) -> str:
        return f"{self.connect}+{self.delivery}"


FIRST: Final = Ways("dial-in", "image")
OTHERS: Final = (Ways("dial-out", "init"), Ways("exec-bridge", "hostpath"))


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that pods cannot do, and the checks that show it."""

    reason: str
    checks: tuple[str, ...]


DIFFERENCES: Final[tuple[Difference, ...]] = (
    Difference(
        "pids: only a node's own configuration limits the processes of a pod; the number asked for is not enforced",
        ("test_usage_numbers_are_the_sandboxs_own", "test_process_limit_stops_a_fork_bomb"),
    ),
    Difference(
        "disk: the node evicts a pod that has written too much, a while later; writing does not fail",
        ("test_disk_limit_is_an_ordinary_no_space_error", "test_full_disk_leaves_the_old_file_and_no_part"),
    ),
    Difference(
        "network: a pod has the cluster's network, which its policies restrict (`sandlot manifests`)",
        ("test_network_is_a_loopback_of_its_own",),
    ),
    Difference(
        "freezing: needs a cgroup that may be written, which a container does not have",
        ("test_frozen_processes_stand_still_and_go_on_when_thawed",),
    ),
    Difference(
        "changes: in /etc, where the node mounts files, a directory that was removed is told as an empty one",
        ("test_changes_are_exactly_what_differs_from_the_image",),
    ),
)
"""At most five, none about output, time limits or files."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each check in one way, or in all; `test_ways` has those that run in every other way."""
    if "ways" not in metafunc.fixturenames:
        return
    wanted: tuple[Ways, ...] = OTHERS if metafunc.module.__name__.endswith(".test_ways") else (FIRST,)
    if os.environ.get("SANDLOT_TEST_FULL"):
        wanted = () if wanted is OTHERS else (FIRST, *OTHERS)
    metafunc.parametrize("ways", wanted, ids=str, scope="package")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A listed difference must really differ: it is expected to fail, and a pass is an error."""
    listed = {check: one.reason for one in DIFFERENCES for check in one.checks}
    here = Path(__file__).parent
    for item in items:
        reason = listed.get(getattr(item, "originalname", ""))
        if reason is not None and here in item.path.parents:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


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
async def make_box(cluster: Cluster, provider: sandlot.Provider) -> AsyncIterator[MakeBox]:
    """See `sandlot.testing.conformance`. Pods cannot limit processes, so the suite's limits are asked for as best effort."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(image_name: str = "busybox", /, **fields: object) -> sandlot.Sandbox:
            reference = image_name if ":" in image_name else image(image_name)
            pod = sandlot.PodOptions(node_selector={"kubernetes.io/hostname": cluster.real_node})
            wanted = {"limits": "best-effort", "pod": pod, **fields}
            spec = sandlot.Spec(image=reference, **wanted)  # type: ignore[arg-type]
            return await stack.enter_async_context(await provider.create(spec))

        yield make
