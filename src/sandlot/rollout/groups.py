"""Groups: all rollouts of one task, which a trainer compares with each other."""

from __future__ import annotations

from collections.abc import AsyncIterable, AsyncIterator, Iterable
from dataclasses import dataclass

from sandlot.errors import BadRequest
from sandlot.rollout.results import RolloutResult


@dataclass(frozen=True, slots=True)
class Group:
    """All rollouts of one task."""

    task: str
    results: tuple[RolloutResult, ...]

    @property
    def rewards(self) -> tuple[float, ...]:
        """Of the scored ones only."""
        return tuple(result.reward for result in self.results if result.reward is not None)

    @property
    def lost(self) -> int:
        return sum(result.status == "failed" for result in self.results)

    @property
    def mean_reward(self) -> float | None:
        """Over the scored rollouts; None when there is none."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else None


def group_results(results: Iterable[RolloutResult]) -> tuple[Group, ...]:
    """Groups in the order in which their tasks first appear, members by sample number."""
    members: dict[str, list[RolloutResult]] = {}
    for result in results:
        members.setdefault(result.task, []).append(result)
    return tuple(Group(task, tuple(sorted(found, key=lambda one: one.sample))) for task, found in members.items())


async def whole_groups(results: AsyncIterable[RolloutResult], per_task: int) -> AsyncIterator[Group]:
    """Each group as soon as its last member is there; members of other groups wait meanwhile.

    Raises:
        BadRequest: `results` ended with a group that is not whole (they were not all run, or `per_task` is another).
    """
    open_groups: dict[str, list[RolloutResult]] = {}
    async for result in results:
        members = open_groups.setdefault(result.task, [])
        members.append(result)
        if len(members) == per_task:
            yield group_results(open_groups.pop(result.task))[0]
    if open_groups:
        raise BadRequest(f"{len(open_groups)} groups did not become whole, such as {min(open_groups)!r}")
