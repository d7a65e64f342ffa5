"""A connection against a daemon that misbehaves in every way a test can think of; on virtual time."""

from __future__ import annotations

import asyncio
import gc
import socket
from itertools import pairwise

import pytest

from sandlot import errors
from sandlot.connection import Connection
from sandlot.connection.sinks import Feed
from sandlot.limits import (
    KEEPALIVE_MS,
    LINK_DEAD_MS,
    MAX_CHUNK_BYTES,
    OPEN_TIMEOUT_S,
    REOPEN_WITHIN_S,
    REQUEST_PATIENCE_S,
    WINDOW_BYTES,
)
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.testing.scripted import ScriptedDaemon

pytestmark = pytest.mark.looptime


def now() -> float:
    return asyncio.get_running_loop().time()


async def ask_usage(connection: Connection) -> a.UsageOk:
    return await connection.ask(r.Usage(id=connection.next_id()), a.UsageOk)


def run(connection: Connection, **fields: object) -> asyncio.Task[a.Exit]:
    request = r.Exec(id=connection.next_id(), key=f"k{connection.next_id()}", script=b"x", **fields)  # type: ignore[arg-type]

    async def wait() -> a.Exit:
        exit: a.Exit = await connection.finish(connection.begin(request, connection.output()))
        return exit

    return asyncio.create_task(wait())


# --- opening -------------------------------------------------------------------------------------------------------------
async def test_silent_daemon_is_given_up_in_time(daemon: ScriptedDaemon) -> None:
    """It accepts and never says hello."""
    daemon.hello = False
    with pytest.raises(errors.DeadlineExceeded):
        await daemon.connect()
    assert now() == pytest.approx(OPEN_TIMEOUT_S, abs=1)
    await daemon.wait_closed()


async def test_daemon_that_closes_before_hello_is_a_lost_link() -> None:
    """A typed error at once, not at the bound."""
    ours, theirs = socket.socketpair()
    theirs.close()
    with pytest.raises(errors.TransportLost):
        await Connection.open(ours)
    assert now() < 1


async def test_something_else_than_a_daemon_is_a_breach() -> None:
    """An HTTP server, say."""
    ours, theirs = socket.socketpair()
    theirs.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(errors.ProtocolViolation):
        await Connection.open(ours)
    theirs.close()


async def test_cancelled_opening_leaves_no_socket_behind(daemon: ScriptedDaemon) -> None:
    """The socket belongs to the connection from the first moment."""
    daemon.hello = False
    opening = asyncio.create_task(daemon.connect())
    await asyncio.sleep(1)
    assert daemon.connected
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await daemon.wait_closed()


# --- one link --------------------------------------------------------------------------------------------------------------
async def test_answers_find_their_calls_in_any_order(daemon: ScriptedDaemon) -> None:
    """Many calls at once on one link."""
    connection = await daemon.connect()
    calls = [run(connection) for _ in range(50)]
    requests = [await daemon.next(r.Exec) for _ in calls]
    for code, request in reversed(list(enumerate(requests))):
        daemon.send(a.Exit(id=request.id, code=code))
    assert [(await call).code for call in calls] == list(range(50))


async def test_complete_answer_returns_although_the_link_stays_open(daemon: ScriptedDaemon) -> None:
    """The exit ends the call; nobody waits for the socket to close."""
    connection = await daemon.connect()
    call = run(connection)
    request = await daemon.next(r.Exec)
    daemon.send(a.Exit(id=request.id, code=0, out=a.Kept(2, 2, 2, b"ok")))
    assert (await call).out.d == b"ok"
    assert daemon.connected


async def test_request_without_an_answer_ends_at_its_bound(daemon: ScriptedDaemon) -> None:
    """The daemon answers pings and nothing else; the call is cancelled there and the connection lives on."""
    connection = await daemon.connect()
    began = now()
    with pytest.raises(errors.DeadlineExceeded):
        await ask_usage(connection)
    assert now() - began == pytest.approx(REQUEST_PATIENCE_S, abs=1)
    request = await daemon.next(r.Usage)
    assert (await daemon.next(r.Cancel)).id == request.id
    daemon.send(a.Error(id=request.id, code="cancelled"))
    again = asyncio.create_task(ask_usage(connection))
    daemon.send(a.UsageOk(id=(await daemon.next(r.Usage)).id, pids=3))
    assert (await again).pids == 3


async def test_short_bound_is_kept_among_long_ones(daemon: ScriptedDaemon) -> None:
    """The earliest bound wakes first, in whatever order the calls began."""
    connection = await daemon.connect()
    ends: list[tuple[str, float]] = []

    async def wait(name: str, bound_s: float) -> None:
        request = r.Exec(id=connection.next_id(), key=name, script=b"x")
        with pytest.raises(errors.DeadlineExceeded):
            await connection.finish(connection.begin(request, connection.output(), bound_s=bound_s))
        ends.append((name, now()))

    await asyncio.gather(*(wait(name, s) for name, s in (("long", 50.0), ("short", 3.0), ("middle", 20.0))))
    assert [name for name, _ in ends] == ["short", "middle", "long"]
    assert [at for _, at in ends] == pytest.approx([3, 20, 50], abs=1)


async def test_quiet_daemon_is_pinged_and_its_command_waited_for(daemon: ScriptedDaemon) -> None:
    """Hours without output are no reason to give up, as long as pings are answered."""
    connection = await daemon.connect()
    call = run(connection)
    request = await daemon.next(r.Exec)
    await asyncio.sleep(3 * 3600)
    assert not call.done()
    daemon.send(a.Exit(id=request.id, code=0))
    assert (await call).code == 0


async def test_link_that_says_nothing_at_all_is_lost_after_the_contracts_time(daemon: ScriptedDaemon) -> None:
    """Half-open links do not hold callers for ever."""
    daemon.pong = False
    connection = await daemon.connect()
    began = now()
    with pytest.raises(errors.TransportLost):
        await run(connection)
    assert now() - began == pytest.approx((LINK_DEAD_MS + KEEPALIVE_MS) / 1000, abs=KEEPALIVE_MS / 1000)


@pytest.mark.parametrize(
    "garbage", [b"\x00\x00\x00\x00", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\xc1", b"\x00\x00\x00\x02\x91\x91"]
)
async def test_garbage_ends_every_call_with_the_breach_and_closes(daemon: ScriptedDaemon, garbage: bytes) -> None:
    """Typed, at once, for the calls that are live and for all later ones; the daemon is told why."""
    connection = await daemon.connect()
    calls = [run(connection), run(connection)]
    await daemon.next(r.Exec)
    daemon.send_raw(garbage)
    for call in calls:
        with pytest.raises(errors.ProtocolViolation):
            await call
    with pytest.raises(errors.ProtocolViolation):
        await ask_usage(connection)
    told = await daemon.next(a.Error)
    assert (told.id, told.code) == (0, "protocol_error")
    await daemon.wait_closed()


async def test_refusal_for_the_whole_connection_is_its_typed_error(daemon: ScriptedDaemon) -> None:
    """`error` with id 0 tells why a daemon hangs up."""
    connection = await daemon.connect()
    call = run(connection)
    await daemon.next(r.Exec)
    daemon.send(a.Error(id=0, code="gone", message="out of memory", why="oom"))
    with pytest.raises(errors.SandboxGone) as gone:
        await call
    assert gone.value.why == "oom"


# --- cancelling --------------------------------------------------------------------------------------------------------------
async def test_cancelled_call_cancels_at_the_daemon_and_harms_no_other(daemon: ScriptedDaemon) -> None:
    """Late output and the late end of the cancelled one are dropped."""
    connection = await daemon.connect()
    victim, other = run(connection), run(connection)
    first, second = await daemon.next(r.Exec), await daemon.next(r.Exec)
    victim.cancel()
    with pytest.raises(asyncio.CancelledError):
        await victim
    assert (await daemon.next(r.Cancel)).id == first.id
    daemon.send(
        a.Out(first.id, 1, 0, b"late"),
        a.Exit(id=first.id, signal=9, out=a.Kept(4, 4, 4)),
        a.Exit(id=second.id, code=5),
    )
    assert (await other).code == 5


async def test_call_cancelled_in_the_turn_in_which_its_answer_comes(daemon: ScriptedDaemon) -> None:
    """Whichever wins, nothing is left and nothing breaks."""
    connection = await daemon.connect()
    for _ in range(20):
        call = run(connection)
        request = await daemon.next(r.Exec)
        daemon.send(a.Exit(id=request.id, code=0))
        await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
    last = run(connection)
    daemon.send(a.Exit(id=(await daemon.next(r.Exec)).id, code=7))
    assert (await last).code == 7
    assert "0 calls" in repr(connection)


# --- lost links --------------------------------------------------------------------------------------------------------------
async def test_lost_link_without_a_way_back_ends_every_call(daemon: ScriptedDaemon) -> None:
    """Connections to a host are not reopened."""
    connection = await daemon.connect()
    call = run(connection)
    await daemon.next(r.Exec)
    daemon.reset()
    with pytest.raises(errors.TransportLost):
        await call


@pytest.mark.parametrize("read", [False, True])
async def test_command_survives_a_reset_before_and_after_it_was_read(daemon: ScriptedDaemon, read: bool) -> None:
    """Either way it is sent once more with the same key, and its caller notices nothing."""
    connection = await daemon.connect()
    connection.keep_open(daemon.connect)
    if not read:
        daemon.stop_reading()
    call = run(connection)
    key = (await daemon.next(r.Exec)).key if read else None
    daemon.reset()
    again = await daemon.next(r.Exec)
    assert key in (None, again.key)
    daemon.send(a.Exit(id=again.id, code=3))
    assert (await call).code == 3
    assert (connection.links_lost, daemon.links) == (1, 2)


async def test_calls_made_while_there_is_no_link_wait_for_it(daemon: ScriptedDaemon) -> None:
    """A cut shorter than the bound is a delay, not an error."""
    connection = await daemon.connect()
    ready = asyncio.Event()

    async def later() -> Connection:
        await ready.wait()
        return await daemon.connect()

    connection.keep_open(later)
    daemon.reset()
    await asyncio.sleep(1)
    call = run(connection)
    await asyncio.sleep(5)
    ready.set()
    daemon.send(a.Exit(id=(await daemon.next(r.Exec)).id, code=0))
    assert (await call).code == 0


async def test_reopening_is_tried_again_with_growing_pauses_up_to_its_bound(daemon: ScriptedDaemon) -> None:
    """Then every call ends as lost, and the reason of the last failure is named."""
    connection = await daemon.connect()
    tries: list[float] = []

    async def refused() -> Connection:
        tries.append(now())
        raise ConnectionRefusedError("nobody listens")

    connection.keep_open(refused)
    call = run(connection)
    await daemon.next(r.Exec)
    began = now()
    daemon.reset()
    with pytest.raises(errors.TransportLost, match="nobody listens"):
        await call
    assert now() - began == pytest.approx(REOPEN_WITHIN_S, abs=3)
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert 10 < len(tries) < 60
    assert max(pauses[:2]) < 0.2
    assert max(pauses) > 1


async def test_reopening_that_hangs_is_bounded_too(daemon: ScriptedDaemon) -> None:
    """A backend that never answers does not hold the callers."""
    connection = await daemon.connect()

    async def never() -> Connection:
        await asyncio.Event().wait()
        raise AssertionError

    connection.keep_open(never, within_s=7)
    call = run(connection)
    await daemon.next(r.Exec)
    began = now()
    daemon.reset()
    with pytest.raises(errors.TransportLost):
        await call
    assert now() - began == pytest.approx(7, abs=1)


async def test_sandbox_that_is_gone_is_told_at_once_with_its_reason(daemon: ScriptedDaemon) -> None:
    """No second try, and every caller learns why."""
    connection = await daemon.connect()

    async def gone() -> Connection:
        raise errors.SandboxGone("it ran out of memory", why="oom")

    connection.keep_open(gone)
    calls = [run(connection), run(connection)]
    await daemon.next(r.Exec)
    daemon.reset()
    for call in calls:
        with pytest.raises(errors.SandboxGone) as found:
            await call
        assert found.value.why == "oom"
    assert now() < 1


async def test_reopening_that_raises_nonsense_still_ends_the_calls(daemon: ScriptedDaemon) -> None:
    """A defect in a backend is not a hang."""
    connection = await daemon.connect()

    async def defect() -> Connection:
        raise ZeroDivisionError

    connection.keep_open(defect)
    call = run(connection)
    await daemon.next(r.Exec)
    reported: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context))
    daemon.reset()
    with pytest.raises(errors.TransportLost):
        await call
    await asyncio.sleep(0)
    gc.collect()
    assert [type(context["exception"]) for context in reported] == [ZeroDivisionError]


async def test_new_link_to_another_sandbox_is_refused(daemon: ScriptedDaemon) -> None:
    """Names are compared before anything is sent."""
    connection = await daemon.connect()
    call = run(connection)
    await daemon.next(r.Exec)
    async with ScriptedDaemon(name="another") as other:
        connection.keep_open(other.connect)
        daemon.reset()
        with pytest.raises(errors.ProtocolViolation):
            await call
        assert other.received == []


async def test_reads_begin_again_on_the_new_link(daemon: ScriptedDaemon) -> None:
    """What had arrived is dropped, so that no file is half old and half new."""
    connection = await daemon.connect()
    connection.keep_open(daemon.connect)
    sink = connection.begin(r.Read(id=connection.next_id(), path=b"/a"), connection.contents())
    call = asyncio.create_task(connection.finish(sink))
    request = await daemon.next(r.Read)
    daemon.send(r.Data(request.id, 1, 0, b"old"))
    await asyncio.sleep(0.01)
    daemon.reset()
    request = await daemon.next(r.Read)
    daemon.send(r.Data(request.id, 1, 0, b"new!"), a.ReadOk(request.id, 4, 0o644, 0))
    await call
    assert sink.parts == [b"new!"]


# --- streams -----------------------------------------------------------------------------------------------------------------
async def test_reader_that_pauses_holds_back_acknowledgements(daemon: ScriptedDaemon) -> None:
    """The daemon may send a window and no more until the reader goes on."""
    connection = await daemon.connect()
    feed: Feed = connection.begin(r.Exec(id=connection.next_id(), key="k", script=b"x", mode="stream"), connection.feed())
    request = await daemon.next(r.Exec)
    chunk = bytes(MAX_CHUNK_BYTES)
    chunks = WINDOW_BYTES // MAX_CHUNK_BYTES
    daemon.send(*(a.Out(request.id, 1, i * MAX_CHUNK_BYTES, chunk) for i in range(chunks)))
    await asyncio.sleep(1)
    assert daemon.received == []
    for _ in range(chunks // 2):
        connection.consumed(feed, await feed.next())
    assert (await daemon.next(r.Ack)).off == WINDOW_BYTES // 2
    connection.abandon(feed)


async def test_parts_without_data_stop_the_socket_when_nobody_takes_them(daemon: ScriptedDaemon) -> None:
    """A million entries do not pile up in memory while a disk is slow."""
    connection = await daemon.connect()
    feed = connection.begin(r.Download(id=connection.next_id(), path=b"/"), connection.feed())
    request = await daemon.next(r.Download)
    count = 100_000
    daemon.send(*(r.Entry(request.id, b"%d" % i, "dir") for i in range(count)))
    await asyncio.sleep(1)
    assert len(feed._parts) < 10_000
    taken = 0
    while taken < count:
        taken += len(await feed.next_batch())
    daemon.send(a.TransferOk(request.id, dirs=count))
    assert await feed.next_batch() == []
    assert (await feed.future).dirs == count


async def test_sender_waits_for_acknowledgements_and_for_the_socket(daemon: ScriptedDaemon) -> None:
    """At most a window is under way, however slowly the daemon reads."""
    connection = await daemon.connect()
    source = connection.begin(r.Write(id=connection.next_id(), path=b"/a"), connection.source())
    sent = 0

    async def send() -> None:
        nonlocal sent
        while sent < 4 * WINDOW_BYTES:
            room = await connection.wait_room(source)
            connection.send_data(source, bytes(room))
            sent += room
        connection.send_end(source)

    sending = asyncio.create_task(send())
    request = await daemon.next(r.Write)
    await asyncio.sleep(1)
    assert sent == WINDOW_BYTES
    while sent < 4 * WINDOW_BYTES:
        part = await daemon.next(r.Data)
        daemon.send(r.Ack(request.id, 0, part.off + len(part.d)))
        await asyncio.sleep(0)
    await sending
    await daemon.next(r.End)
    daemon.send(a.WriteOk(request.id, 4 * WINDOW_BYTES))
    assert (await connection.finish(source)).size == 4 * WINDOW_BYTES


# --- closing -----------------------------------------------------------------------------------------------------------------
async def test_closing_says_bye_and_ends_live_calls(daemon: ScriptedDaemon) -> None:
    """Once and again; later calls are refused."""
    connection = await daemon.connect()
    call = run(connection)
    await daemon.next(r.Exec)
    await connection.aclose()
    await connection.aclose()
    with pytest.raises(errors.Closed):
        await call
    with pytest.raises(errors.Closed):
        await ask_usage(connection)
    await daemon.next(r.Bye)
    await daemon.wait_closed()


async def test_closing_that_is_cancelled_closes_all_the_same(daemon: ScriptedDaemon) -> None:
    """Closing again waits for the same end."""
    connection = await daemon.connect()
    closing = asyncio.create_task(connection.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert closing.cancelled()
    await connection.aclose()
    assert connection.wire is None or connection.wire.closed.done()
    await daemon.wait_closed()


async def test_closing_does_not_wait_for_a_daemon_that_does_not_read(daemon: ScriptedDaemon) -> None:
    """Unsent bytes are dropped."""
    connection = await daemon.connect()
    daemon.stop_reading()
    calls = [run(connection, stdin=bytes(MAX_CHUNK_BYTES)) for _ in range(20)]
    await asyncio.sleep(0.1)
    await connection.aclose()
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {errors.Closed}
    assert now() < 1


async def test_closing_while_reopening_stops_that(daemon: ScriptedDaemon) -> None:
    """No task is left behind."""
    connection = await daemon.connect()

    async def never() -> Connection:
        await asyncio.Event().wait()
        raise AssertionError

    connection.keep_open(never)
    daemon.reset()
    await asyncio.sleep(0.1)
    await connection.aclose()
    assert len(asyncio.all_tasks()) == 1


async def test_host_connection_becomes_the_sandboxs_link(daemon: ScriptedDaemon) -> None:
    """After the answer to create, hellos are exchanged again on the same socket, with the daemon inside."""
    daemon.role, daemon.name = "host", "host-1"
    connection = await daemon.connect()
    image, upper = r.Image(kind="host"), r.Upper(kind="tmpfs", size_bytes=1)
    request = r.Create(id=connection.next_id(), name="sb", image=image, upper=upper)
    becoming = asyncio.create_task(connection.become_sandbox(request, a.CreateOk))
    create = await daemon.next(r.Create)
    daemon.role, daemon.name = "init", "sb"
    daemon.send(a.CreateOk(id=create.id, unenforced=("cpu",)))
    assert (await becoming).unenforced == ("cpu",)
    assert (connection.welcome.role, connection.name) == ("init", "sb")
    call = run(connection)
    daemon.send(a.Exit(id=(await daemon.next(r.Exec)).id, code=0))
    assert (await call).code == 0
