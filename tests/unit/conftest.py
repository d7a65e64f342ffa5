"""For unit tests."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from sandlot.testing.scripted import ScriptedDaemon


@pytest.fixture
async def daemon() -> AsyncIterator[ScriptedDaemon]:
    """A daemon that does what the test tells it; everything that was opened to it is closed at the end."""
    async with ScriptedDaemon() as scripted:
        yield scripted
