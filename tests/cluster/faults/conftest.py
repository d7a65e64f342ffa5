"""A namespace for each test, an image in the cluster's registry, and a look from outside at the end of every test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

import sandlot
from cluster import Cluster
from sandlot.policy import Settings, cluster_settings
from tests.cluster import pods
from tests.cluster.conftest import TestImages
from tests.cluster.faults.census import wait_nothing
from tests.cluster.faults.clients import LEFT_S
from tests.cluster.faults.proxy import Proxy, proxied


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leases run out in real time, and the first may wait for the build of a cluster."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def space(cluster: Cluster) -> Iterator[str]:
    """A namespace. Whatever a test does, nothing may be left in it, nor of it on the node, soon after the leases' ends."""
    with cluster.api() as api, pods.namespace(api) as name:
        yield name
        left = wait_nothing(cluster, name, LEFT_S)
        assert not left, f"left in {name}: {left}"


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


@pytest.fixture
def settings() -> Settings:
    """As on every cluster."""
    return cluster_settings()
