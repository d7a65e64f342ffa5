"""What `--agent` and `rollouts` accept as an agent."""

from __future__ import annotations

import pytest

from sandlot.errors import BadRequest
from sandlot.rollout.agents import GOLD, HALF, NONE, Agent, CommandAgent, FunctionAgent, agent_from, agent_of
from sandlot.sandbox import Sandbox
from sandlot.tasks.task import Task


async def solve(box: Sandbox, task: Task) -> None:
    """An agent for the tests below."""


def not_async(box: Sandbox, task: Task) -> None:
    """Not an agent."""


def test_words_mean_the_yardsticks() -> None:
    """By their exact names."""
    assert [agent_from(name) for name in ("gold", "half", "none")] == [GOLD, HALF, NONE]


@pytest.mark.parametrize("text", ["python /agent.py", "./agent", "sh -c 'exit 1'", "/bin/true"])
def test_anything_with_a_space_or_a_path_is_a_command(text: str) -> None:
    """It is run inside, so nothing here has to exist."""
    assert agent_from(text) == CommandAgent(text)


def test_module_and_function_are_imported() -> None:
    """The name of such an agent is what was written."""
    agent = agent_from(f"{__name__}:solve")
    assert isinstance(agent, FunctionAgent)
    assert agent.name == f"{__name__}:solve"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("golden", "unknown agent 'golden'"),
        ("", "unknown agent"),
        ("no.such.module:solve", "No module named"),
        (f"{__name__}:nothing", "no attribute"),
        (f"{__name__}:not_async", "async def"),
    ],
)
def test_unknown_agents_are_refused(text: str, message: str) -> None:
    """Before anything is started, with what to do."""
    with pytest.raises(BadRequest, match=message):
        agent_from(text)


def test_functions_and_objects_are_agents_as_they_are() -> None:
    """A coroutine function by its qualified name, an object by its own."""
    assert agent_of(solve).name == f"{__name__}:solve"
    agent: Agent = NONE
    assert agent_of(agent) is NONE
    with pytest.raises(BadRequest, match="no agent"):
        agent_of(not_async)  # type: ignore[arg-type]
