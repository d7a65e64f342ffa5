"""Cancels a call at the n-th of all points where it, or any task that runs for it, waits for something.

Tasks inherit the context of whoever makes them, so those of one call are known from those of another, however many run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any, Literal

Who = Literal["the caller", "the caller twice", "every task"]
"""Who is cancelled: the task that called, once or again at the next point; or all that runs for it, as when a loop ends."""

_plan: ContextVar[Plan | None] = ContextVar("cancelling", default=None)


@dataclass(slots=True, eq=False)
class Plan:
    """Where one call is cancelled, and what came of it."""

    at: int
    """1 is the first point; 0: nowhere, only count."""
    who: Who = "the caller"
    passed: int = 0
    """Points so far."""
    caller: asyncio.Task[Any] | None = None
    _tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    @property
    def reached(self) -> bool:
        """Whether the call lasted until that point."""
        return 0 < self.at <= self.passed

    async def run(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        """What the call returns or raises; its CancelledError as a value, since it was not this one's own end."""
        mark = _plan.set(self)
        try:
            self.caller = asyncio.create_task(call())
        finally:
            _plan.reset(mark)
        await asyncio.wait([self.caller])
        return asyncio.CancelledError() if self.caller.cancelled() else self.caller.result()

    def waits(self) -> None:
        """One more point."""
        self.passed += 1
        if self.caller is not None and self.passed in self._points():
            for task in self._tasks if self.who == "every task" else [self.caller]:
                task.cancel()

    def _points(self) -> tuple[int, ...]:
        return (self.at, self.at + 1) if self.who == "the caller twice" else (self.at,)


class _Counted(Coroutine[Any, Any, Any]):
    """Passes everything on, and tells the plan each time that it waits."""

    def __init__(self, inner: Coroutine[Any, Any, Any], plan: Plan) -> None:
        self._inner, self._counts = inner, plan

    def send(self, value: Any, /) -> Any:
        return self._waiting(self._inner.send(value))

    def throw(self, *error: Any) -> Any:
        return self._waiting(self._inner.throw(*error))

    def close(self) -> None:
        self._inner.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        raise NotImplementedError("only tasks run it")

    def _waiting(self, future: Any) -> Any:
        self._counts.waits()
        return future


def count_waits(loop: asyncio.AbstractEventLoop) -> None:
    """Make this loop's tasks those of the plans that they run for."""

    def make(loop: asyncio.AbstractEventLoop, coroutine: Any, **more: Any) -> asyncio.Task[Any]:
        plan = (more.get("context") or copy_context()).get(_plan)
        if plan is None:
            return asyncio.Task(coroutine, loop=loop, **more)
        task = asyncio.Task(_Counted(coroutine, plan), loop=loop, **more)
        plan._tasks.append(task)
        return task

    loop.set_task_factory(make)
