"""The API without async: the same calls, waited for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandlot import errors, sync
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.sandbox import Sandbox
from sandlot.sync import Blocking, LoopThread, Pool
from sandlot.testing.scripted import ScriptedDaemon


class House:
    """What `local` would give: something with a sandbox in it, on the loop's thread."""

    def __init__(self) -> None:
        self.daemon = ScriptedDaemon()
        self.colour = "red"

    async def __aenter__(self) -> House:
        self.serving = asyncio.create_task(self._serve())
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self.serving.cancel()
        await self.daemon.aclose()

    async def create(self) -> Sandbox:
        return Sandbox(await self.daemon.connect(), name="box")

    def names(self) -> list[str]:
        asyncio.get_running_loop()
        return ["box"]

    async def take(self, box: Sandbox) -> str:
        return box.name

    async def _serve(self) -> None:
        while True:
            request = await self.daemon.next(r.Exec)
            if request.script == b"hang":
                continue
            if request.mode == "stream":
                self.daemon.send(a.Out(request.id, 1, 0, b"one"), a.Out(request.id, 1, 3, b"two"))
                self.daemon.send(a.Exit(request.id, code=0, out=a.Kept(6, 6)))
            else:
                self.daemon.send(a.Exit(request.id, code=5, out=a.Kept(2, 2, 2, b"hi")))


@pytest.fixture
def house() -> Iterator[Any]:
    """A covered house, with its own loop thread."""
    thread = LoopThread()

    async def build() -> House:
        return House()

    with Blocking(thread.call(build()), thread, owns_thread=True) as covered:
        yield covered
    assert not thread._thread.is_alive()


def test_calls_wait_for_their_result(house: Any) -> None:
    """Values come as they are, async objects covered."""
    box = house.create()
    assert isinstance(box, Blocking)
    result = box.exec("x")
    assert (result.exit_code, result.stdout) == (5, "hi")
    assert box.name == "box"
    assert house.names() == ["box"]


def test_async_iteration_is_iteration(house: Any) -> None:
    """Also left early."""
    box = house.create()
    with box.stream("x") as stream:
        assert [chunk.data for chunk in stream] == [b"one", b"two"]
        assert stream.result.exit_code == 0
    with box.stream("x") as stream:
        for _ in stream:
            break


def test_covered_objects_are_arguments_too(house: Any) -> None:
    """They are uncovered on the way in."""
    assert house.take(house.create()) == "box"


def test_errors_are_the_same(house: Any) -> None:
    """Raised where the call was made."""
    box = house.create()
    with pytest.raises(errors.BadRequest):
        box.exec("")
    box.aclose()
    with pytest.raises(errors.Closed):
        box.exec("x")


def test_attributes_can_be_set(house: Any) -> None:
    """On the object itself, not on its cover."""
    house.colour = "blue"
    assert house._covered.colour == "blue"


def test_help_is_that_of_the_async_method(house: Any) -> None:
    """Names, documentation and completion are there."""
    box = house.create()
    assert "Run a command to its end" in box.exec.__doc__
    assert {"exec", "read", "start", "shell"} <= set(dir(box))


def test_calls_may_come_from_many_threads(house: Any) -> None:
    """One loop serves them all."""
    box = house.create()
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda i: box.exec(f"echo {i}").exit_code, range(100)))
    assert results == [5] * 100


def test_interrupt_cancels_the_call_and_leaves_the_rest_working(house: Any) -> None:
    """Ctrl-C in a blocking call is the cancellation of that call."""
    box = house.create()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        while not house._covered.daemon.received:
            if box._covered.connection._session.calls:
                break
            time.sleep(0.001)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        box.exec("hang")
    thread.join()
    assert box.exec("x").exit_code == 5


def test_what_needs_a_provider_says_so() -> None:
    """Not an attribute error deep inside."""
    with pytest.raises(errors.BadRequest, match="needs a provider"):
        Pool("no provider")  # type: ignore[arg-type]


def test_use_after_the_end_is_a_typed_error() -> None:
    """The loop is gone then."""
    thread = LoopThread()

    async def build() -> House:
        return House()

    covered: Any = Blocking(thread.call(build()), thread, owns_thread=True)
    with covered:
        pass
    with pytest.raises(errors.Closed):
        covered.names()


def test_a_cluster_is_opened_without_async(tmp_path: Path) -> None:
    """`sandlot.sync.kubernetes` takes the same arguments; what goes wrong on entering is raised, and its loop ends."""
    before = set(threading.enumerate())
    with pytest.raises(errors.Unsupported, match="no kubeconfig"), sync.kubernetes(kubeconfig=tmp_path / "nothing"):
        pass
    assert not [one for one in threading.enumerate() if one.name == "sandlot.sync" and one not in before]
