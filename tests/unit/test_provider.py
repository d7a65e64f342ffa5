"""The provider: usable means answered, failures are tried again where that helps, and nothing is ever left behind.

Everything runs on virtual time against a backend whose sandboxes are not real and whose faults are scripted.
"""

from __future__ import annotations

import asyncio
import gc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from sandlot.adaptive import Adaptive
from sandlot.connection import Connection
from sandlot.errors import (
    BadRequest,
    Capacity,
    CleanupFailed,
    Closed,
    DaemonFault,
    ImageInvalid,
    ImageNotFound,
    NotReady,
    SandboxGone,
    SandlotError,
    Throttled,
    TransportLost,
)
from sandlot.events import EventLog
from sandlot.janitor import Deletion
from sandlot.lifecycle import Record, State
from sandlot.pacing import Pace
from sandlot.policy import Settings
from sandlot.provider import Provider
from sandlot.sandbox import Sandbox
from sandlot.spec import Spec
from sandlot.testing.fake import FakeBackend, FakeCommand, FakeResult, Point
from tests.unit.troubles import Script, Trouble

pytestmark = pytest.mark.looptime
SPEC = Spec()


@asynccontextmanager
async def providing(backend: FakeBackend, **settings: object) -> AsyncIterator[Provider]:
    """A provider on this backend whose events carry virtual time; afterwards nothing may exist."""
    loop = asyncio.get_running_loop()
    events = EventLog(clock=loop.time, wall=loop.time)
    async with Provider(backend, Settings(**settings), events=events) as provider:  # type: ignore[arg-type]
        yield provider
    assert backend.existing == frozenset()


def kinds(provider: Provider) -> list[str]:
    return [event.kind for event in provider.events]


async def elapsed() -> float:
    return asyncio.get_running_loop().time()


# --- usable ---------------------------------------------------------------------------------------------------------
async def test_a_sandbox_is_handed_over_once_it_has_answered() -> None:
    """Each step of its life is one event, in order."""
    backend = FakeBackend()
    async with providing(backend) as provider:
        sandbox = await provider.create(SPEC)
        assert backend.existing == {sandbox.name}
    steps = ["intended", "creating", "created", "usable", "deleting", "gone"]
    assert kinds(provider) == [f"sandbox.{step}" for step in steps] + ["provider.closed"]


async def test_the_clocks_of_queue_create_and_first_command_are_apart() -> None:
    """Each second is charged to what it was spent on."""

    async def slow(command: FakeCommand) -> FakeResult:
        await asyncio.sleep(2)
        return FakeResult()

    backend = FakeBackend(respond=slow, interfere=Script(create_before=[3.0, 5.0]))
    async with providing(backend, pace=Pace(in_flight=1, adaptive=None)) as provider:
        await asyncio.gather(provider.create(SPEC), provider.create(SPEC))
        statistics = provider.statistics()
    assert pytest.approx([statistics.queue.max_s, statistics.create.max_s, statistics.first_command.max_s]) == [5.0, 5.0, 2.0]
    assert (statistics.created, statistics.states) == (2, {State.USABLE: 2})


async def test_what_the_backend_tells_of_a_create_is_kept_apart() -> None:
    """Each part that it can tell has a clock; the others have none. The event of the sandbox tells them too."""
    backend = FakeBackend(interfere=Script(create_before=[3.0]))
    backend.spans = {"schedule": 0.5, "pull": 2.0}
    async with providing(backend) as provider:
        await provider.create(SPEC)
        parts = provider.statistics().parts
    assert {part: (spread.n, spread.max_s) for part, spread in parts.items()} == {"schedule": (1, 0.5), "pull": (1, 2.0)}
    told = next(event.data for event in provider.events if event.kind == "sandbox.usable")
    assert (told["create_s"], told["schedule_s"], told["pull_s"]) == pytest.approx((3.0, 0.5, 2.0))


async def test_a_cut_of_the_pace_is_an_event() -> None:
    """With the new limit and the reason."""
    backend = FakeBackend(interfere=Script(create_before=[Throttled("later", retry_after_s=1.0)]))
    async with providing(backend, pace=Pace(adaptive=Adaptive(start=8))) as provider:
        await provider.create(SPEC)
    slowed = [dict(event.data) for event in provider.events if event.kind == "gate.slowed"]
    assert slowed == [{"limit": 4, "why": "throttled"}]


@pytest.mark.parametrize("kind", [NotReady, ImageNotFound])
async def test_a_bad_image_does_not_slow_the_others(kind: type[SandlotError]) -> None:
    """Forty creates of it hang for a minute each and fail; a hundred good ones, asked for later, are done after the first."""

    async def hang(point: Point, name: str) -> None:
        if point == "create.before" and name.startswith("bad"):
            await asyncio.sleep(60)
            raise kind("it did not start")

    backend = FakeBackend(interfere=hang)
    async with providing(backend, pace=Pace(in_flight=8, adaptive=None), attempts=1) as provider:
        bad = [asyncio.create_task(provider.create(Spec(image="dir:/bad"), name=f"bad-{n}")) for n in range(40)]
        await asyncio.sleep(0)
        await asyncio.gather(*(provider.create(SPEC) for _ in range(100)))
        assert await elapsed() < 70
        results = await asyncio.gather(*bad, return_exceptions=True)
        assert {type(result) for result in results} == {kind}
        assert provider.statistics().failures == {kind.kind: 40}


async def test_image_work_is_not_charged_to_readiness() -> None:
    """A create that takes minutes succeeds with a short ready time-out."""
    backend = FakeBackend(interfere=Script(create_before=[180.0]))
    async with providing(backend, ready_timeout_s=2.0) as provider:
        await provider.create(SPEC)


async def test_an_image_without_a_shell_is_usable() -> None:
    """127 from the daemon: everything of ours worked, and the image has no command that we could know of."""

    async def no_shell(command: FakeCommand) -> FakeResult:
        return FakeResult(127, err=b"sandlot: sh: not found\n")

    async with providing(FakeBackend(respond=no_shell)) as provider:
        await provider.create(SPEC)


async def test_a_shell_that_cannot_run_is_the_image_s_fault() -> None:
    """It is said at once, with what the daemon said, and not tried again."""

    async def wrong_machine(command: FakeCommand) -> FakeResult:
        return FakeResult(126, err=b"sandlot: sh: exec format error\n")

    backend = FakeBackend(respond=wrong_machine)
    async with providing(backend) as provider:
        with pytest.raises(ImageInvalid, match=r"exit code 126.*exec format error"):
            await provider.create(SPEC)
    assert backend.created == 1


async def test_a_sandbox_that_does_not_answer_is_no_sandbox() -> None:
    """After the ready time-out it is deleted and another one is tried; at last the caller is told."""

    async def never(command: FakeCommand) -> FakeResult:
        await asyncio.Event().wait()
        raise AssertionError

    backend = FakeBackend(respond=never)
    async with providing(backend, ready_timeout_s=10.0, attempts=2) as provider:
        with pytest.raises(NotReady, match="within 10 s"):
            await provider.create(SPEC)
    assert backend.created == 2


async def test_a_create_that_never_ends_is_given_up() -> None:
    """The create clock has its own bound."""
    backend = FakeBackend(interfere=Script().always("create.before", 10_000.0))
    async with providing(backend, create_timeout_s=60.0, attempts=1) as provider:
        with pytest.raises(NotReady, match="not created within 60 s"):
            await provider.create(SPEC)


# --- trying again ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("point", ["create_before", "create_after"])
async def test_infrastructure_failures_are_tried_again_under_another_name(point: str) -> None:
    """Whether or not the failed one came to exist: it is deleted, and there is one sandbox in the end."""
    failures: list[Trouble] = [TransportLost("reset"), DaemonFault("oops")]
    backend = FakeBackend(interfere=Script(**{point: failures}))
    async with providing(backend) as provider:
        await provider.create(SPEC)
        await asyncio.sleep(5)
        assert len(backend.existing) == 1
        failed = [event for event in provider.events if event.kind == "create.failed"]
    assert [(event.data["error"], event.data["attempt"]) for event in failed] == [("transport", 1), ("daemon_fault", 2)]
    assert len({event.sandbox for event in failed}) == 2


async def test_attempts_are_bounded() -> None:
    """The last error is the caller's answer."""
    script = Script().always("create.before", Capacity("full"))
    async with providing(FakeBackend(interfere=script), attempts=3) as provider:
        with pytest.raises(Capacity):
            await provider.create(SPEC)
    assert script.reached["create.before"] == 3
    assert provider.statistics().failures == {"capacity": 3}


@pytest.mark.parametrize(("within_s", "attempts"), [(0.0, 1), (600.0, 3)])
async def test_a_failure_that_comes_late_is_the_last(within_s: float, attempts: int) -> None:
    """Whoever waits for one sandbox has waited long enough by then."""
    script = Script().always("create.before", Capacity("full"))
    async with providing(FakeBackend(interfere=script), attempts=3, retry_within_s=within_s) as provider:
        with pytest.raises(Capacity):
            await provider.create(SPEC)
    assert script.reached["create.before"] == attempts


async def test_what_can_never_work_is_not_tried_again() -> None:
    """The caller's fault is told at once."""
    script = Script().always("create.before", ImageNotFound("nothing at nowhere"))
    async with providing(FakeBackend(interfere=script)) as provider:
        with pytest.raises(ImageNotFound):
            await provider.create(SPEC)
    assert (script.reached["create.before"], await elapsed() < 1) == (1, True)


async def test_come_back_later_is_obeyed_and_is_no_attempt() -> None:
    """More often than there are attempts; the wait is as long as was asked for."""
    script = Script(create_before=[Throttled("later", retry_after_s=3.0)] * 5)
    async with providing(FakeBackend(interfere=script), attempts=2) as provider:
        await provider.create(SPEC)
        assert await elapsed() == pytest.approx(15, abs=1)


async def test_come_back_later_is_not_obeyed_for_ever() -> None:
    """Patience has its bound."""
    script = Script().always("create.before", Throttled("later", retry_after_s=7.0))
    async with providing(FakeBackend(interfere=script), patience_s=60.0) as provider:
        with pytest.raises(Throttled):
            await provider.create(SPEC)
        assert 60 <= await elapsed() < 80


# --- names ----------------------------------------------------------------------------------------------------------
async def test_a_chosen_name_is_used_again_for_the_next_attempt() -> None:
    """Only once what bore it is gone."""
    backend = FakeBackend(interfere=Script(create_after=[TransportLost("reset")], delete=[20.0]))
    async with providing(backend) as provider:
        sandbox = await provider.create(SPEC, name="mine")
        assert [sandbox.name] == [*backend.existing] == ["mine"]
        assert await elapsed() >= 20


@pytest.mark.parametrize("name", ["", "-a", "a-", "a" * 64, "A", "a_b", "a/b", "a\n", "ä"])
async def test_a_name_that_could_not_name_a_pod_is_refused(name: str) -> None:
    """Before anything is asked."""
    backend = FakeBackend()
    async with providing(backend) as provider:
        with pytest.raises(BadRequest):
            await provider.create(SPEC, name=name)
    assert backend.created == 0


async def test_a_name_in_use_here_is_refused() -> None:
    """And the sandbox that bears it is not harmed."""
    backend = FakeBackend()
    async with providing(backend) as provider:
        await provider.create(SPEC, name="mine")
        with pytest.raises(BadRequest, match="already"):
            await provider.create(SPEC, name="mine")
        assert backend.existing == {"mine"}


async def test_a_name_in_use_elsewhere_is_refused_and_never_deleted() -> None:
    """A sandbox of another client survives that someone wanted its name."""
    backend = FakeBackend()
    async with Provider(backend) as other:
        theirs = await other.create(SPEC, name="mine")
        async with Provider(backend) as provider:
            with pytest.raises(BadRequest, match="already"):
                await provider.create(SPEC, name="mine")
        assert backend.existing == {"mine"}
        assert (await theirs.exec(":")).ok


async def test_two_providers_side_by_side_never_touch_each_other_s() -> None:
    """Closing one leaves the other's alive."""
    backend = FakeBackend()
    async with Provider(backend) as one:
        mine = [await one.create(SPEC) for _ in range(3)]
        async with Provider(backend) as two:
            for _ in range(3):
                await two.create(SPEC)
        assert two.closing is not None
        assert str(two.closing) == "created 3, gone 3, left 0"
        assert backend.existing == {sandbox.name for sandbox in mine}


# --- cancelling -----------------------------------------------------------------------------------------------------
async def test_a_caller_that_times_out_a_hundred_times_leaves_nothing() -> None:
    """Whatever the create was doing at that moment."""
    backend = FakeBackend(interfere=Script().always("create.before", 0.25).always("create.after", 0.25))
    async with providing(backend, pace=Pace(adaptive=None)) as provider:
        for _ in range(100):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(provider.create(SPEC), 0.1)
        statistics = provider.statistics()
    assert statistics.created == 100
    assert str(provider.closing) == "created 100, gone 100, left 0"


async def test_cancelling_while_queued_asks_for_nothing() -> None:
    """What never had its turn was never created."""
    backend = FakeBackend(interfere=Script().always("create.before", 1.0))
    async with providing(backend, pace=Pace(in_flight=1, adaptive=None)) as provider:
        first = asyncio.create_task(provider.create(SPEC))
        rest = [asyncio.create_task(provider.create(SPEC)) for _ in range(10)]
        await asyncio.sleep(0.5)
        for task in rest:
            task.cancel()
        await first
        await asyncio.wait(rest)
        assert provider.statistics().gate.queued == 0
    assert backend.created == 1


async def test_a_hanging_create_is_cut_off_and_watched_for_late_arrival() -> None:
    """A delete that overtakes its create does not count: it is deleted again once it has come to exist."""
    backend = FakeBackend(interfere=Script(create_before=[2.5]))
    async with providing(backend, deletion=Deletion(create_grace_s=1.0, settle_s=2.0)) as provider:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(provider.create(SPEC), 0.1)
        await asyncio.sleep(10)
        assert (backend.created, backend.existing, provider.statistics().states) == (1, frozenset(), {})


async def test_closing_sends_waiting_callers_away() -> None:
    """Each create that is queued or under way ends with `Closed`, and what it made is deleted."""
    backend = FakeBackend(interfere=Script().always("create.before", 1.0))
    async with providing(backend, pace=Pace(in_flight=2, adaptive=None)) as provider:
        tasks = [asyncio.create_task(provider.create(SPEC)) for _ in range(5)]
        await asyncio.sleep(0.5)
        closing = await provider.aclose()
        results = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(result) for result in results] == [Closed] * 5
    assert str(closing) == "created 2, gone 2, left 0"


async def test_a_cancelled_close_goes_on() -> None:
    """Calling again waits for the same end."""
    backend = FakeBackend(interfere=Script().always("delete", 5.0))
    async with providing(backend) as provider:
        for _ in range(3):
            await provider.create(SPEC)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(provider.aclose(), 0.1)
        assert (await provider.aclose()).gone == 3


def test_deletions_outlive_the_end_of_the_event_loop() -> None:
    """A program that ends in the middle of a deletion still finishes it: the loop's own cancelling only makes it hurry."""
    backend = FakeBackend(interfere=Script().always("delete", 0.01))

    async def program() -> None:
        provider = Provider(backend)
        await provider.start()
        sandboxes = [await provider.create(SPEC) for _ in range(5)]
        for sandbox in sandboxes:
            provider.discard(sandbox, why="test")

    asyncio.run(program())
    assert backend.existing == frozenset()


def test_closing_outlives_a_program_that_is_cancelled_twice() -> None:
    """As two interrupts from a keyboard do: the second one hits in the middle of closing."""
    backend = FakeBackend(interfere=Script().always("delete", 0.05))
    providers = []

    async def program(made: asyncio.Event) -> None:
        async with Provider(backend) as provider:
            providers.append(provider)
            for _ in range(5):
                await provider.create(SPEC)
            made.set()
            await asyncio.Event().wait()

    async def interrupted() -> None:
        made = asyncio.Event()
        task = asyncio.create_task(program(made))
        await made.wait()
        task.cancel()
        await asyncio.sleep(0.01)
        task.cancel()

    asyncio.run(interrupted())
    assert backend.existing == frozenset()
    assert str(providers[0].closing) == "created 5, gone 5, left 0"


# --- deleting -------------------------------------------------------------------------------------------------------
async def test_a_delete_that_fails_is_tried_until_it_is_confirmed() -> None:
    """Never reported as done before the backend said so."""
    script = Script(delete=[TransportLost("reset"), OSError("network"), Throttled("later")])
    async with providing(FakeBackend(interfere=script)) as provider:
        sandbox = await provider.create(SPEC)
        await sandbox.aclose()
        assert script.reached["delete"] == 4
    gone = next(event for event in provider.events if event.kind == "sandbox.gone")
    assert gone.data["attempts"] == 4
    assert kinds(provider).count("delete.failed") == 3


async def test_a_delete_that_hangs_is_tried_again() -> None:
    """One call that never returns holds nothing up but itself."""
    backend = FakeBackend(interfere=Script(delete=[10_000.0]))
    async with providing(backend, deletion=Deletion(attempt_s=5.0)) as provider:
        await (await provider.create(SPEC)).aclose()
        assert await elapsed() < 6


async def test_what_cannot_be_deleted_is_named() -> None:
    """In the closing, and as an error for whoever asks; the next close tries again."""
    backend = FakeBackend(interfere=Script().always("delete", DaemonFault("stuck")))
    provider = Provider(backend, Settings(deletion=Deletion(give_up_after_s=30.0)))
    await provider.start()
    await provider.create(SPEC, name="stuck")
    with pytest.raises(CleanupFailed) as caught:
        await provider.delete("stuck")
    assert caught.value.left == ("stuck",)
    closing = await provider.aclose()
    assert str(closing) == "created 1, gone 0, left 1 (stuck)"
    with pytest.raises(CleanupFailed, match="left 1"):
        closing.check()


async def test_leaving_something_is_a_warning_and_no_exception() -> None:
    """A fault of tearing down never replaces the result of the block."""
    backend = FakeBackend(interfere=Script().always("delete", DaemonFault("stuck")))
    with pytest.warns(ResourceWarning, match="left 1"):
        async with Provider(backend, Settings(deletion=Deletion(give_up_after_s=5.0))) as provider:
            await provider.create(SPEC)


async def test_closing_a_handle_twice_and_at_once_deletes_once() -> None:
    """Every closer waits for the one deletion."""
    script = Script(delete=[3.0])
    async with providing(FakeBackend(interfere=script)) as provider:
        sandbox = await provider.create(SPEC)
        await asyncio.gather(*(sandbox.aclose() for _ in range(5)), provider.delete(sandbox.name))
        await sandbox.aclose()
        assert script.reached["delete"] == 1
        with pytest.raises(Closed):
            await sandbox.exec(":")


async def test_deletes_have_a_budget_of_their_own() -> None:
    """Never more under way than that, and whoever waits for its turn is not given up for it."""
    now: list[int] = [0, 0]

    async def slow(point: Point, name: str) -> None:
        if point == "delete":
            now[0] += 1
            now[1] = max(now)
            await asyncio.sleep(10)
            now[0] -= 1

    backend = FakeBackend(interfere=slow)
    async with providing(backend, deletion=Deletion(in_flight=4, give_up_after_s=15.0)) as provider:
        for _ in range(40):
            await provider.create(SPEC)
        closing = await provider.aclose()
    assert now[1] == 4
    assert await elapsed() == pytest.approx(100.0, abs=1)
    assert str(closing) == "created 40, gone 40, left 0"


async def test_neither_creates_nor_deletes_starve_the_others() -> None:
    """With a full line of creates a deletion takes as long as without, and the other way round."""
    backend = FakeBackend(interfere=Script().always("create.before", 1.0).always("delete", 1.0))
    async with providing(backend, pace=Pace(in_flight=2, adaptive=None), deletion=Deletion(in_flight=2)) as provider:
        first = [await provider.create(SPEC) for _ in range(4)]
        began = await elapsed()
        making = [asyncio.create_task(provider.create(SPEC)) for _ in range(10)]
        await asyncio.gather(*(sandbox.aclose() for sandbox in first))
        assert await elapsed() - began == pytest.approx(2.0, abs=0.1)
        await asyncio.gather(*making)
        assert await elapsed() - began == pytest.approx(5.0, abs=0.1)


async def test_a_delete_that_is_throttled_slows_the_others() -> None:
    """What the service says to one holds for all."""
    script = Script(delete=[Throttled("later", retry_after_s=30.0)])
    backend = FakeBackend(interfere=script)
    async with providing(backend, deletion=Deletion(in_flight=1)) as provider:
        sandboxes = [await provider.create(SPEC) for _ in range(3)]
        await asyncio.gather(*(sandbox.aclose() for sandbox in sandboxes))
        assert await elapsed() >= 30
    assert script.reached["delete"] == 4


async def test_many_are_deleted_in_one_go_when_all_shall_go() -> None:
    """And each deletion is still confirmed by name; leased ones live on."""
    script = Script()
    backend = FakeBackend(interfere=script)
    provider = Provider(backend, Settings(deletion=Deletion(clear_from=10)))
    await provider.start()
    for _ in range(10):
        await provider.create(SPEC)
    kept = await provider.create(SPEC, owner="leased", lease_s=60)
    closing = await provider.aclose()
    assert (closing.gone, closing.left, closing.kept) == (10, (), (kept.name,))
    assert (script.reached["clear"], script.reached["delete"], sorted(backend.existing)) == (1, 10, [kept.name])
    assert await backend.delete(kept.name)


@pytest.mark.parametrize("trouble", [DaemonFault("no"), 10_000.0])
async def test_one_go_that_fails_leaves_nothing(trouble: Trouble) -> None:
    """Each is deleted by itself, then."""
    backend = FakeBackend(interfere=Script().always("clear", trouble))
    async with providing(backend, deletion=Deletion(clear_from=2, give_up_after_s=20.0)) as provider:
        for _ in range(5):
            await provider.create(SPEC)
        closing = await provider.aclose()
    assert str(closing) == "created 5, gone 5, left 0"
    assert kinds(provider).count("clear.failed") == 1


# --- ending by themselves -------------------------------------------------------------------------------------------
async def test_handles_of_a_sandbox_that_ended_say_why_at_once() -> None:
    """Without waiting for a call to fail, and its remains are deleted."""
    backend = FakeBackend()
    async with providing(backend) as provider:
        sandbox = await provider.create(SPEC)
        backend.kill(sandbox.name, "oom", "memory limit")
        await asyncio.sleep(0.1)
        with pytest.raises(SandboxGone, match=r"oom.*memory limit") as caught:
            await sandbox.exec(":")
        assert caught.value.why == "oom"
        await asyncio.sleep(1)
        assert provider.statistics().states == {}
    assert "sandbox.lost" in kinds(provider)
    assert str(provider.closing) == "created 1, gone 1, left 0"


async def test_a_running_command_ends_with_its_sandbox() -> None:
    """The call that waits is told, and told why."""

    async def forever(command: FakeCommand) -> FakeResult:
        if command.script != ":":
            await asyncio.Event().wait()
        return FakeResult()

    backend = FakeBackend(respond=forever)
    async with providing(backend) as provider:
        sandbox = await provider.create(SPEC)
        running = asyncio.create_task(sandbox.exec("work"))
        await asyncio.sleep(1)
        backend.kill(sandbox.name, "evicted")
        with pytest.raises(SandboxGone) as caught:
            await running
    assert caught.value.why == "evicted"


async def test_what_ended_while_the_watch_was_broken_is_found() -> None:
    """A watch that breaks is opened again, and what is missing from the list has ended."""
    backend = FakeBackend(interfere=Script(watch=[None, TransportLost("reset")]))
    async with providing(backend) as provider:
        heard, missed = await provider.create(SPEC), await provider.create(SPEC)
        backend.kill(heard.name)
        await backend.delete(missed.name)
        await asyncio.sleep(30)
        assert provider.statistics().states == {}


async def test_what_came_to_exist_behind_everybody_s_back_is_found_at_the_end() -> None:
    """A create that arrived after its deletion had been confirmed: the last look before closing deletes it."""
    backend = FakeBackend(interfere=Script(create_before=[20.0]))
    async with providing(backend, deletion=Deletion(create_grace_s=1.0, settle_s=2.0)) as provider:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(provider.create(SPEC), 0.1)
        await asyncio.sleep(30)
        assert (provider.statistics().states, len(backend.existing)) == ({}, 1)


# --- leases ---------------------------------------------------------------------------------------------------------
async def test_a_leased_sandbox_outlives_its_provider_and_is_found_again() -> None:
    """By name, from another provider, which can renew and delete it."""
    backend = FakeBackend()
    async with Provider(backend) as one:
        await (await one.create(SPEC, owner="leased", lease_s=60.0, name="kept")).aclose()
        await one.create(SPEC)
    assert str(one.closing) == "created 2, gone 1, left 0, kept 1 under a lease (kept)"
    assert backend.existing == {"kept"}
    async with Provider(backend) as two:
        sandbox = await two.attach("kept")
        assert (await sandbox.exec(":")).ok
        await two.renew("kept", 120.0)
        await sandbox.aclose()
        assert backend.existing == {"kept"}
        await two.delete("kept")
        assert backend.existing == frozenset()


async def test_attaching_to_what_is_gone_says_so() -> None:
    """And leaves no record behind."""
    async with providing(FakeBackend()) as provider:
        with pytest.raises(SandboxGone):
            await provider.attach("nobody")
        assert provider.statistics().created == 0


@pytest.mark.parametrize("wrong", [{"owner": "leased"}, {"lease_s": 5.0}, {"owner": "leased", "lease_s": 0.0}])
async def test_a_lease_needs_a_length_and_a_length_needs_a_lease(wrong: dict[str, object]) -> None:
    """The caller's fault is told before anything is created."""
    async with providing(FakeBackend()) as provider:
        with pytest.raises(BadRequest):
            await provider.create(SPEC, **wrong)  # type: ignore[arg-type]


# --- the rest -------------------------------------------------------------------------------------------------------
async def test_a_provider_that_is_not_open_says_so() -> None:
    """Before it was entered, and after it was closed."""
    provider = Provider(FakeBackend())
    with pytest.raises(Closed, match="async with"):
        await provider.create(SPEC)
    async with provider:
        pass
    for use in (provider.create(SPEC), provider.attach("x"), provider.start()):
        with pytest.raises(Closed):
            await use


async def test_says_what_it_holds() -> None:
    """The listing shows the provider's own states, its text the counts."""
    async with providing(FakeBackend()) as provider:
        sandbox = await provider.create(SPEC)
        assert [(info.name, info.state) for info in await provider.list()] == [(sandbox.name, "usable")]
        assert repr(provider) == f"<Provider {provider.mark} on fake: created 1, gone 0; now 1 usable>"


async def test_nothing_of_a_deleted_sandbox_is_kept() -> None:
    """However many come and go, the provider holds only what exists: no handle, no record, no task."""
    async with providing(FakeBackend()) as provider:
        for _ in range(50):
            await (await provider.create(SPEC)).aclose()
            task = asyncio.create_task(provider.create(SPEC))
            for _ in range(5):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
        del task
        await asyncio.sleep(10)
        gc.collect()
        kept = Counter(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, (Sandbox, Record, Connection)))
        assert kept == {}
        assert len(asyncio.all_tasks()) == 2


async def test_an_error_of_no_known_kind_still_leaves_nothing() -> None:
    """A backend with a fault of its own: the caller gets its error, and the name is deleted."""
    backend = FakeBackend(interfere=Script(create_after=[ZeroDivisionError("bug")]))
    async with providing(backend) as provider:
        with pytest.raises(ZeroDivisionError):
            await provider.create(SPEC)
    assert not issubclass(ZeroDivisionError, SandlotError)
