"""Pods that wait in silence: a typed failure within seconds, unless they wait in a queue that moves."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from sandlot import errors
from sandlot.backends.base import Grant
from sandlot.backends.kubernetes import status
from sandlot.backends.kubernetes.objects import EventSeen, Involved, SeenPod
from sandlot.backends.kubernetes.unnoticed import Schedulers, unnoticed
from sandlot.podoptions import PodOptions
from sandlot.spec import Spec
from tests.unit.backends.kubernetes.fake_api import refusal
from tests.unit.backends.kubernetes.test_backend import OPTIONS, SPEC, World, until, world

GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "Scheduling is blocked"}
PLACED = {"type": "PodScheduled", "status": "True"}
LONGEST_S = 60.0


def pod(*conditions: dict[str, str], gates: tuple[str, ...] = (), node: str | None = None, **told: Any) -> SeenPod:
    spec = {"nodeName": node, "schedulingGates": [{"name": one} for one in gates] or None}
    said = {"phase": "Pending", "conditions": conditions or None, **told}
    return msgspec.convert({"metadata": {"name": "p"}, "spec": spec, "status": said}, SeenPod)


# --- pure -------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (pod(), True),
        (pod(node="no-such-node"), True),
        (pod(GATED), True),
        (pod(GATED, gates=("q",)), False),
        (pod(PLACED, node="n1"), False),
        (pod({"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}), False),
        (pod(node="n1", containerStatuses=[{"name": "task"}]), False),
        (pod(node="n1", phase="Running"), False),
    ],
)
def test_a_pod_is_unnoticed_while_nobody_has_written_into_it(seen: SeenPod, expected: bool) -> None:
    """What the API server wrote of gates that are gone is nobody's notice."""
    assert unnoticed(seen) is expected


def test_gates_are_told_by_their_names() -> None:
    """Whoever put them there may take them away, so it is waited for as for a place."""
    found = status.trouble(pod(GATED, gates=("team.example/quota", "b\x1b[0m")))
    assert found is not None
    assert (type(found.error), found.patience) == (errors.Capacity, "schedule")
    assert "team.example/quota, b?[0m" in found.error.message


def test_a_claim_that_cannot_be_made_is_the_callers_fault() -> None:
    """The scheduler holds such a pod back without a word; the controller of claims has one."""
    said = EventSeen("Warning", "FailedResourceClaimCreation", 'template "gpu" not found', Involved("1"))
    found = status.trouble(pod(), [said])
    assert found is not None
    assert (type(found.error), found.patience) == (errors.BadRequest, "schedule")


def silent_s(schedulers: Schedulers, came_s: float, now: float) -> float:
    return schedulers.silent_s("s", came_s=came_s, now=now, longest_s=LONGEST_S)


def test_silence_begins_when_the_pod_comes() -> None:
    """Of a scheduler that was never heard of."""
    assert (silent_s(Schedulers(), 100.0, 130.0), Schedulers().heard_of("s")) == (30.0, False)


def test_a_queue_that_moves_is_no_silence() -> None:
    """Others are served, and those came no later: ours may be next, however long that takes."""
    schedulers = Schedulers()
    for now in range(100, 1000, 10):
        schedulers.decided("s", came_s=90.0, now=float(now))
    assert (silent_s(schedulers, 100.0, 991.0), schedulers.heard_of("s")) == (1.0, True)
    assert silent_s(schedulers, 100.0, 1090.0) == 100.0


def test_a_pod_that_much_later_ones_overtake_is_in_no_queue() -> None:
    """A little later is not enough: queues are not that exact, and there are priorities."""
    schedulers = Schedulers()
    schedulers.decided("s", came_s=100.0 + LONGEST_S, now=170.0)
    assert silent_s(schedulers, 100.0, 170.0) == 0.0
    schedulers.decided("s", came_s=101.0 + LONGEST_S, now=180.0)
    assert silent_s(schedulers, 100.0, 180.0) == 80.0


def test_what_was_said_while_nobody_watched_may_have_been_said() -> None:
    """So silence begins anew."""
    schedulers = Schedulers()
    schedulers.decided("s", came_s=0.0, now=1.0)
    schedulers.resumed(500.0)
    assert silent_s(schedulers, 0.0, 510.0) == 10.0


# --- with an API server -------------------------------------------------------------------------------------------------
def naming(**extra: object) -> Spec:
    return replace(SPEC, pod=PodOptions(extra=extra))


async def failure(w: World, spec: Spec) -> tuple[errors.SandlotError, float]:
    """Of a create that nobody serves, and after how many seconds."""
    w.runs = False
    began_s = asyncio.get_running_loop().time()
    with pytest.raises(errors.SandlotError, match=r"^box: ") as raised:
        await w.backend.create("box", spec, Grant())
    return raised.value, asyncio.get_running_loop().time() - began_s


looptime = pytest.mark.looptime(noop_cycles=300)  # both ends of real sockets are here: bytes may be on their way


@looptime
async def test_node_that_does_not_exist_is_named() -> None:
    """By asking for it, as soon as nobody has taken the pod up for a moment."""
    async with world() as w:
        w.cluster.nodes = ["n1"]
        error, seconds = await failure(w, naming(nodeName="no-such-node"))
        assert isinstance(error, errors.BadRequest)
        assert "'no-such-node'" in error.message
        assert seconds < 10


@looptime
@pytest.mark.parametrize("may_ask", [True, False])
async def test_node_that_takes_nothing_up_is_infrastructure(may_ask: bool) -> None:
    """It is there, or that may not be asked: what is known is that it did nothing."""
    async with world() as w:
        w.cluster.nodes = ["n1"] if may_ask else []
        with w.cluster.trouble("GET", "/nodes", refusal(403) if not may_ask else _nothing):
            error, seconds = await failure(w, naming(nodeName="n1"))
        assert isinstance(error, errors.NotReady)
        assert "'n1'" in error.message
        assert 30 <= seconds < 40


@looptime
async def test_scheduler_that_nobody_knows_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Within the time that a scheduler has to find no place; before that it is told what is waited for."""
    caplog.set_level("INFO", "sandlot")
    async with world() as w:
        error, seconds = await failure(w, replace(SPEC, pod=PodOptions(scheduler="not-here")))
        assert isinstance(error, errors.NotReady)
        assert "'not-here'" in error.message
        assert any("'not-here'" in text and "given up after 15 s" in text for text in caplog.messages)
        assert OPTIONS.unschedulable_s <= seconds < OPTIONS.unschedulable_s + 10


@looptime
async def test_usual_scheduler_has_the_longer_patience() -> None:
    """It is there, as a rule, and its queue may be long."""
    async with world(replace(OPTIONS, scheduler_silence_s=LONGEST_S)) as w:
        error, seconds = await failure(w, SPEC)
        assert isinstance(error, errors.NotReady)
        assert LONGEST_S <= seconds < LONGEST_S + 10


@looptime
async def test_pod_in_a_queue_that_moves_waits_on() -> None:
    """Though its own turn comes only after several times the longest silence."""
    options = replace(OPTIONS, scheduler_silence_s=20.0)
    async with world(options) as w:
        w.runs = False
        creating = [asyncio.create_task(w.backend.create(f"box-{n}", SPEC, Grant())) for n in range(5)]
        await until(lambda: len(w.cluster.pods) == 5)
        for n in range(5):
            await asyncio.sleep(options.scheduler_silence_s - 5)
            assert not any(one.done() for one in creating[n:])
            await w.cluster.run(f"box-{n}")
            await creating[n]


@looptime
async def test_watch_that_lags_is_not_taken_for_silence() -> None:
    """The pod is asked for before anything is said of it."""
    options = replace(OPTIONS, scheduler_silence_s=20.0)
    async with world(options) as w:
        w.runs = False
        creating = asyncio.create_task(w.backend.create("box", SPEC, Grant()))
        await until(lambda: "box" in w.cluster.pods)
        w.cluster.pods["box"]["status"] = {"phase": "Pending", "conditions": [PLACED]}  # and no event tells of it
        await asyncio.sleep(3 * options.scheduler_silence_s)
        assert not creating.done()
        await w.cluster.run("box")
        await creating


@looptime
async def test_gates_hold_a_pod_back_no_longer_than_a_missing_place(caplog: pytest.LogCaptureFixture) -> None:
    """And one whose gates go in time starts. What is waited for is told at once, and once."""
    caplog.set_level("INFO", "sandlot")
    async with world() as w:
        w.runs = False
        creating = asyncio.create_task(w.backend.create("box", naming(schedulingGates=[{"name": "q"}]), Grant()))
        await until(lambda: "box" in w.cluster.pods)
        await w.cluster.set_status("box", conditions=[GATED])
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(errors.Capacity, match="gates hold it back: q"):
            await creating
        assert asyncio.get_running_loop().time() - began_s <= OPTIONS.unschedulable_s + 1
        assert sum("hold it back" in text for text in caplog.messages) == 1
        await w.backend.delete("box")
        creating = asyncio.create_task(w.backend.create("box", naming(schedulingGates=[{"name": "q"}]), Grant()))
        await until(lambda: "box" in w.cluster.pods)
        await w.cluster.set_status("box", conditions=[GATED])
        await asyncio.sleep(OPTIONS.unschedulable_s - 1)
        del w.cluster.pods["box"]["spec"]["schedulingGates"]
        await w.cluster.set_status("box", conditions=[GATED])
        await asyncio.sleep(OPTIONS.unschedulable_s)
        await w.cluster.run("box")
        await creating


async def _nothing(_request: object) -> None:
    """Let it pass."""
