"""A namespace for each test, an image in the cluster's registry, and a look from outside at the end of every test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import sandlot
from cluster import Cluster, down, images, running, up
from cluster.say import Say
from tests.cluster import pods
from tests.cluster.conftest import TestImages, own_name
from tests.cluster.faults.census import Left, wait_nothing
from tests.cluster.faults.clients import PROMISE_S
from tests.cluster.faults.proxy import Proxy, proxied


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leases run out in real time, and the first may wait for the build of a cluster."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)


Record = Callable[[str, Left], None]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How long it took until nothing was left, the longest first."""
    found = [
        (left.counted_s, f"{report.nodeid.rpartition('::')[2]}: {what}: {left}")
        for reports in terminalreporter.stats.values()
        for report in reports
        if isinstance(report, pytest.TestReport) and report.when == "teardown"
        for what, left in report.user_properties
        if isinstance(left, Left)
    ]
    if found:
        terminalreporter.section(f"until nothing was left; promised: {PROMISE_S:g} s")
        for _, line in sorted(found, reverse=True):
            terminalreporter.write_line(line)


@pytest.fixture
def record(record_property: Callable[[str, object], None]) -> Record:
    """Note for the summary what was left, or how soon nothing was."""
    return record_property


def watched_namespace(cluster: Cluster, record: Record) -> Iterator[str]:
    """A namespace that must be empty in the end, and on the node too."""
    with pods.lasting_namespace(cluster) as name:
        yield name
        left = wait_nothing(cluster, name)
        record("the end", left)
        assert not left, f"left in {name}: {left}"


@pytest.fixture
def space(cluster: Cluster, record: Record) -> Iterator[str]:
    """A namespace. Whatever a test does, nothing may be left in it, nor of it on the node, soon after the leases' ends."""
    yield from watched_namespace(cluster, record)


@pytest.fixture(scope="session")
def breakable(cluster: Cluster) -> Iterator[Cluster]:
    """A cluster whose parts may be stopped: the session's own, or another one where somebody else's was named."""
    if "SANDLOT_TEST_CLUSTER" not in os.environ:
        yield cluster
        return
    name = own_name("breakable")
    up.up(up.Wanted(name), Say())
    yield running(name)
    assert not down.down(name, Say()), "the cluster left something behind"


@pytest.fixture
def own_space(breakable: Cluster, record: Record) -> Iterator[str]:
    """As `space`, in the cluster that may be broken."""
    yield from watched_namespace(breakable, record)


@pytest.fixture
def own_image(breakable: Cluster, tmp_path: Path) -> str:
    """As `image`, in the cluster that may be broken."""
    commands = {f"bin/{name}": "busybox" for name in ("sh", "sleep", "cat")}
    made = images.make(tmp_path / "busybox", {"bin/busybox": Path("/bin/busybox")}, links=commands)
    return breakable.push(made, "tests/faults:1")


@pytest.fixture
def image(test_images: TestImages) -> str:
    """Has a shell."""
    return test_images.busybox


@pytest.fixture
def spec(image: str) -> sandlot.Spec:
    """A sandbox of it, on a real node."""
    return sandlot.Spec(image=image)


@pytest.fixture
async def proxy(cluster: Cluster, tmp_path: Path) -> AsyncIterator[Proxy]:
    """Between the test's client and the API server."""
    async with proxied(cluster, tmp_path) as made:
        yield made
