"""A fake API server for each test that asks for one, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandlot.backends.kubernetes.api import Api
from tests.unit.backends.kubernetes.fake_api import FakeCluster


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Empty, with its namespace."""
    async with FakeCluster() as fake:
        yield fake


@pytest.fixture
async def api(cluster: FakeCluster) -> AsyncIterator[Api]:
    """Closed at the end."""
    async with await Api.open(cluster.load) as opened:
        yield opened
