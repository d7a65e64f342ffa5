"""Who solves the task: a command inside the sandbox, a function of the caller's, or one of three built-in yardsticks.

The contract is written down in docs/agents.md. An agent that fails, or runs out of its time, has still left something: it is
judged.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import math
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from sandlot.errors import BadRequest
from sandlot.result import Result
from sandlot.rollout.results import AgentEnd, AgentReport
from sandlot.sandbox import Sandbox
from sandlot.tasks.patch import FilePatch, first_half, parse_patch
from sandlot.tasks.place import apply_patch
from sandlot.tasks.task import Task

PROBLEM_FILE: Final = "/tmp/sandlot/problem.md"
"""Where a command agent finds the problem statement, outside the task's tree so that it is no part of the change."""

OUTPUT_BYTES: Final = 1_048_576
"""Kept of each stream of a command agent while it runs."""

TAIL_CHARS: Final = 4_000
"""Kept of its output in the result."""

AgentFunction = Callable[[Sandbox, Task], Awaitable[object]]

_FUNCTION: Final = re.compile(r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$")


@dataclass(frozen=True, slots=True)
class Assignment:
    """One rollout as its agent sees it."""

    task: Task
    sample: int
    limit_s: float
    """Seconds the agent may take, from now."""


class Agent(Protocol):
    """Works in a sandbox until it is done. The engine keeps the time limit, by cancelling; that is no failure."""

    @property
    def name(self) -> str:
        """Stable: a run is continued only by an agent of the same name."""

    async def solve(self, box: Sandbox, assignment: Assignment) -> AgentReport: ...


@dataclass(frozen=True, slots=True)
class CommandAgent:
    """A script run by the sandbox's `sh`, in the task's tree."""

    script: str

    @property
    def name(self) -> str:
        return self.script

    async def solve(self, box: Sandbox, assignment: Assignment) -> AgentReport:
        task = assignment.task
        await box.write(PROBLEM_FILE, task.problem.encode())
        environment = {
            "SANDLOT_TASK": task.id,
            "SANDLOT_SAMPLE": str(assignment.sample),
            "SANDLOT_PROBLEM_FILE": PROBLEM_FILE,
            "SANDLOT_TREE": task.tree,
            "SANDLOT_TIME_LIMIT_S": str(math.floor(assignment.limit_s)),
            "SANDLOT_DEADLINE_S": str(math.floor(time.time() + assignment.limit_s)),
        }
        result = await box.exec(self.script, cwd=task.tree, env=environment, timeout=assignment.limit_s, cap=OUTPUT_BYTES)
        tail = (result.stdout + result.stderr)[-TAIL_CHARS:]
        code = None if result.timed_out else result.exit_code
        return AgentReport(_end(result), code, result.usage.wall_s, tail)


@dataclass(frozen=True, slots=True)
class FunctionAgent:
    """A coroutine function of the caller's: it gets the sandbox and the task, and runs in the caller's process."""

    function: AgentFunction
    name: str

    async def solve(self, box: Sandbox, assignment: Assignment) -> AgentReport:
        began = asyncio.get_running_loop().time()
        await self.function(box, assignment.task)
        return AgentReport("finished", None, asyncio.get_running_loop().time() - began)


@dataclass(frozen=True, slots=True)
class PatchAgent:
    """Applies a part of the known answer. Yardsticks: all of it must score 1, nothing and half of it must score 0."""

    name: str
    choose: Callable[[Sequence[FilePatch]], Sequence[FilePatch]]

    async def solve(self, box: Sandbox, assignment: Assignment) -> AgentReport:
        task = assignment.task
        if not task.gold_patch:
            raise BadRequest(f"{task.id} has no gold patch, which agent {self.name!r} needs")
        await apply_patch(box, task.tree, self.choose(parse_patch(task.gold_patch)))
        return AgentReport("finished")


@dataclass(frozen=True, slots=True)
class NoAgent:
    """Does nothing."""

    name: str = "none"

    async def solve(self, box: Sandbox, assignment: Assignment) -> AgentReport:
        return AgentReport("finished")


GOLD: Final = PatchAgent("gold", lambda patches: patches)
HALF: Final = PatchAgent("half", first_half)
NONE: Final = NoAgent()


def agent_from(text: str) -> Agent:
    """The agent that `--agent` means: gold, half, none, `module:function`, or a command.

    Raises:
        BadRequest: none of these, or the function cannot be had (the caller's fault).
    """
    for agent in (GOLD, HALF, NONE):
        if text == agent.name:
            return agent
    if _FUNCTION.match(text):
        return FunctionAgent(_load(text), text)
    if any(char.isspace() or char == "/" for char in text.strip()):
        return CommandAgent(text)
    raise BadRequest(
        f"unknown agent {text!r}", hint="use gold, half, none, module:function, or a command with an argument or a path"
    )


def agent_of(agent: Agent | AgentFunction | str) -> Agent:
    """An agent from what `rollouts` may be given."""
    if isinstance(agent, str):
        return agent_from(agent)
    if inspect.iscoroutinefunction(agent):
        return FunctionAgent(agent, f"{agent.__module__}:{agent.__qualname__}")
    if hasattr(agent, "solve") and hasattr(agent, "name"):
        return agent
    raise BadRequest(f"{agent!r} is no agent", hint="give a coroutine function, or an object with `name` and `solve`")


def _load(text: str) -> AgentFunction:
    module, _, path = text.partition(":")
    try:
        found: object = importlib.import_module(module)
        for name in path.split("."):
            found = getattr(found, name)
    except (ImportError, AttributeError) as error:
        raise BadRequest(f"unknown agent {text!r}: {error}", hint="is its folder on PYTHONPATH?") from error
    if not inspect.iscoroutinefunction(found):
        raise BadRequest(f"agent {text!r} is no `async def` function")
    return found


def _end(result: Result) -> AgentEnd:
    if result.timed_out:
        return "timed_out"
    if result.oom_killed:
        return "out_of_memory"
    if result.signal is not None:
        return "killed"
    return "failed" if result.code else "finished"
