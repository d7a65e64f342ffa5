"""Each cheat is a rollout like any other, on a real provider."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

import sandlot
from sandlot.pool import Pool
from sandlot.rollout import RolloutResult, RolloutSettings, rollouts
from sandlot.rollout.agents import Agent
from sandlot.tasks import Task, read_tasks
from tests.calc import write_tasks

RunOne = Callable[..., Awaitable[RolloutResult]]


@pytest.fixture
def task(calc_layer: Path, tmp_path: Path) -> Task:
    """Three tests to repair, one to keep."""
    (task,) = read_tasks(write_tasks(tmp_path, calc_layer, "calc")).rows
    return task


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    """Sandboxes of this machine."""
    async with sandlot.local() as provider, Pool(provider) as pool:
        yield pool
    assert provider.closing is not None
    assert provider.closing.left == ()


@pytest.fixture
def run_one(pool: Pool, task: Task) -> RunOne:
    """Runs one rollout of an agent to its verdict."""

    async def run(agent: Agent | str, settings: RolloutSettings | None = None) -> RolloutResult:
        (result,) = [result async for result in rollouts([task], agent, pool, settings=settings)]
        assert result.status == "scored", result.attempts
        return result

    return run
