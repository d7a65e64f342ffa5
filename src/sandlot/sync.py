"""The same API without `async`: one event loop in a thread of its own, and a thin cover that waits for it.

    with sandlot.sync.local() as provider:
        with provider.create(Spec(memory="512MiB")) as box:
            print(box.exec("uname -a", timeout=10).stdout)
            with box.stream("make") as stream:
                for chunk in stream: ...
        with sandlot.sync.Pool(provider) as pool:
            for result in sandlot.sync.rollouts(tasks, agent, pool): ...

Every object has the methods of its async counterpart, with the same arguments, results and errors; `await`, `async with` and
`async for` fall away. Ctrl-C during a call cancels the call, as cancelling a task does. Calls may be made from any thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, Generic, ParamSpec, TypeVar

from sandlot import opening, pool, rollout
from sandlot.errors import BadRequest, Closed

__all__ = ["Blocking", "Pool", "kubernetes", "local", "rollouts"]

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """An event loop that runs in a daemon thread until it is closed."""

    def __init__(self) -> None:
        ready: concurrent.futures.Future[asyncio.AbstractEventLoop] = concurrent.futures.Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), name="sandlot.sync", daemon=True)
        self._thread.start()
        self._loop = ready.result()

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run it on the loop and wait for it. An interrupt of the wait (Ctrl-C) cancels it and lets it end first."""
        if self._loop.is_closed():
            work.close()
            raise Closed("the provider was closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise
        except BaseException:
            if not future.done():
                future.cancel()
                concurrent.futures.wait([future])
            raise

    def close(self) -> None:
        """Stop the loop and wait for its thread. Idempotent."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    async def _serve(self, ready: concurrent.futures.Future[asyncio.AbstractEventLoop]) -> None:
        self._stop = asyncio.Event()
        ready.set_result(asyncio.get_running_loop())
        await self._stop.wait()


class Blocking(Generic[T]):
    """An async object whose methods block. What they return is covered in the same way where it is async itself."""

    def __init__(self, covered: T, thread: LoopThread, *, owns_thread: bool = False) -> None:
        self._covered = covered
        self._thread = thread
        self._owns_thread = owns_thread

    def __repr__(self) -> str:
        return f"<blocking {self._covered!r}>"

    def __dir__(self) -> list[str]:
        return [name for name in dir(self._covered) if not name.startswith("_")]

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._covered, name)
        if not callable(value):
            return self._cover(value)

        @functools.wraps(value)
        def method(*args: Any, **kwargs: Any) -> Any:
            return self._cover(self._thread.call(_call(value, args, kwargs)))

        return method

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ("_covered", "_thread", "_owns_thread"):
            object.__setattr__(self, name, value)
        else:
            setattr(self._covered, name, value)

    def __enter__(self) -> Any:
        try:
            entered = self._thread.call(_call(_special(self._covered, "__aenter__"), (), {}))
        except BaseException:
            self._let_go()
            raise
        return self if entered is self._covered else self._cover(entered)

    def __exit__(self, *exc: object) -> Any:
        try:
            return self._thread.call(_call(_special(self._covered, "__aexit__"), exc, {}))
        finally:
            self._let_go()

    def __iter__(self) -> Iterator[Any]:
        iterator = self._thread.call(_call(_special(self._covered, "__aiter__"), (), {}))
        try:
            while True:
                try:
                    item = self._thread.call(_next(iterator))
                except StopAsyncIteration:
                    return
                yield self._cover(item)
        finally:
            if inspect.isasyncgen(iterator):
                self._thread.call(_call(iterator.aclose, (), {}))

    def _cover(self, value: Any) -> Any:
        kind: type[object] = type(value)
        return Blocking(value, self._thread) if _is_async(kind) else value  # type: ignore[arg-type]  # mypy: types are hashable

    def _let_go(self) -> None:
        if self._owns_thread:
            self._thread.close()


async def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """On the loop's thread: objects of the async API belong there."""
    result = function(
        *(_uncover(value) for value in args),
        **{name: _uncover(value) for name, value in kwargs.items()},
    )
    return await result if inspect.isawaitable(result) else result


async def _next(iterator: AsyncIterator[T]) -> T:
    return await anext(iterator)


def _uncover(value: Any) -> Any:
    return value._covered if isinstance(value, Blocking) else value


def _special(value: object, name: str) -> Callable[..., Any]:
    method = getattr(type(value), name, None)
    if method is None:
        raise TypeError(f"{type(value).__name__} cannot be used like this: it has no {name}")
    return functools.partial(method, value)


@functools.cache
def _is_async(kind: type[object]) -> bool:
    """Whether objects of this type have anything to wait for."""
    names = (name for name in dir(kind) if not name.startswith("_") or name in ("__aiter__", "__aenter__"))
    members = (inspect.getattr_static(kind, name) for name in names)
    return any(inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member) for member in members) or hasattr(
        kind, "__anext__"
    )


def _opens(function: Callable[P, T]) -> Callable[P, Blocking[T]]:
    """A function of the async API that makes a provider, with a loop of its own that ends when the provider is left."""

    @functools.wraps(function)
    def opened(*args: P.args, **kwargs: P.kwargs) -> Blocking[T]:
        thread = LoopThread()
        try:
            return Blocking(thread.call(_call(function, args, kwargs)), thread, owns_thread=True)
        except BaseException:
            thread.close()
            raise

    return opened


def _within(function: Callable[P, T]) -> Callable[P, Blocking[T]]:
    """A function of the async API that works with what `local` or `kubernetes` gave, on the loop of that."""

    @functools.wraps(function)
    def within(*args: P.args, **kwargs: P.kwargs) -> Blocking[T]:
        threads = [value._thread for value in (*args, *kwargs.values()) if isinstance(value, Blocking)]
        if not threads:
            raise BadRequest(f"{function.__name__} needs a provider or pool of sandlot.sync among its arguments")
        return Blocking(threads[0].call(_call(function, args, kwargs)), threads[0])

    return within


local = _opens(opening.local)
kubernetes = _opens(opening.kubernetes)
Pool = _within(pool.Pool)
rollouts = _within(rollout.rollouts)
