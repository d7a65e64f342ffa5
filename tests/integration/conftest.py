"""What the integration tests share."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import sandlot
from sandlot.provider import Provider


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """An empty image cache of this test's own."""
    return tmp_path / "cache"


@pytest.fixture
async def provider(cache: Path) -> AsyncIterator[Provider]:
    """A provider on this machine; it must leave nothing."""
    async with sandlot.local(cache=cache) as provider:
        yield provider
        closing = await provider.aclose()
    assert closing.left == ()


@pytest.fixture
def clean_environ(tmp_path: Path) -> dict[str, str]:
    """An environment for child processes that holds nothing of the source tree's."""
    return {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LANG": "C.UTF-8"}
