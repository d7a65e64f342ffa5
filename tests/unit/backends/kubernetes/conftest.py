"""A fake API server for each test that asks for one, and a client of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.backends.kubernetes.api import Api
from tests.unit.backends.kubernetes.fake_api import FakeCluster


@pytest.fixture(autouse=True)
def state_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Secrets of leased sandboxes are kept here, and not where this user's are."""
    home = tmp_path / "state"
    home.mkdir()
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    return home


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
