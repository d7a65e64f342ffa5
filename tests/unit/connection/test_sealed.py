"""A sealed wire: the same bytes come out that went in, however they are cut, and nothing else passes."""

from __future__ import annotations

import asyncio
import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.connection import Connection
from sandlot.connection.noise import TAG_BYTES, Cipher, Ciphers
from sandlot.connection.sealed import LENGTH_BYTES, SealedWire, framed
from sandlot.connection.wire import Wire
from sandlot.errors import ProtocolViolation, TransportLost
from sandlot.limits import MAX_HELLO_BYTES, MAX_SEALED_BYTES
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.protocol.frames import encode

A, B = b"a" * 32, b"b" * 32


class Recorder:
    """Takes what comes into rooms of a given size."""

    def __init__(self, room: int = 1 << 20) -> None:
        self.data = bytearray()
        self.cause: Exception | None = None
        self._room = memoryview(bytearray(room))
        self.pieces = 0
        self.then_close: Wire | None = None

    def room(self) -> memoryview:
        return self._room

    def received(self, count: int) -> None:
        assert count > 0
        self.pieces += 1
        self.data += self._room[:count]
        if self.then_close is not None:
            self.then_close.close()

    def writable(self) -> None: ...

    def lost(self, wire: Wire, cause: Exception | None) -> None:
        self.cause = cause


class Pipe(asyncio.Transport):
    """Bytes that a wire wrote, and whether it was cut: a socket whose other end is the test."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.cut = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return self.cut

    def close(self) -> None:
        self.cut = True

    abort = close


def joined(listener: Recorder) -> tuple[SealedWire, Pipe]:
    """A wire that receives with the key A and sends with B."""
    wire, pipe = SealedWire(listener, Ciphers(send=Cipher(B), receive=Cipher(A))), Pipe()
    wire.connection_made(pipe)
    return wire, pipe


def feed(wire: SealedWire, pipe: Pipe, data: bytes) -> None:
    while data and not pipe.cut:
        room = wire.get_buffer(-1)
        assert len(room) > 0
        count = min(len(room), len(data))
        room[:count] = data[:count]
        wire.buffer_updated(count)
        data = data[count:]


def sealed(*messages: bytes) -> bytes:
    cipher = Cipher(A)
    return b"".join(framed(cipher.seal(message)) for message in messages)


def in_loop(test: object) -> None:
    """Wires need a loop to be made in; hypothesis knows no coroutines."""

    async def run() -> None:
        test()  # type: ignore[operator]

    asyncio.run(run())


SIZES = st.one_of(st.integers(0, 300), st.sampled_from([MAX_HELLO_BYTES + 4, 16_384, MAX_SEALED_BYTES]))


@given(sizes=st.lists(SIZES, max_size=6), room=st.sampled_from([1, 7, 4_096, 1 << 17]), cuts=st.lists(st.integers(1, 70_000)))
def test_the_stream_comes_out_as_it_went_in_wherever_it_is_cut(sizes: list[int], room: int, cuts: list[int]) -> None:
    """Cut into messages by the sender, into reads by the network, into rooms by the listener: the same bytes."""
    messages = [bytes([number]) * (size if room > 1 else min(size, 500)) for number, size in enumerate(sizes)]
    if messages:
        messages[0] = messages[0][: MAX_HELLO_BYTES + 4]

    def run() -> None:
        listener = Recorder(room)
        wire, pipe = joined(listener)
        stream = sealed(*messages)
        for cut in cuts:
            feed(wire, pipe, stream[:cut])
            stream = stream[cut:]
        feed(wire, pipe, stream)
        assert listener.data == b"".join(messages)
        assert not pipe.cut

    in_loop(run)


@given(sizes=st.lists(st.one_of(st.integers(1, 300), st.integers(MAX_SEALED_BYTES - 1, 3 * MAX_SEALED_BYTES)), max_size=4))
def test_what_is_sent_opens_on_the_other_side(sizes: list[int]) -> None:
    """Whatever its length; one call is one write."""

    def run() -> None:
        wire, pipe = joined(Recorder())
        cipher, plain = Cipher(B), bytearray()
        for number, size in enumerate(sizes):
            pipe.written.clear()
            wire.send(bytes([number]) * size)
            rest, plain = memoryview(bytes(pipe.written)), bytearray()
            while rest:
                end = LENGTH_BYTES + int.from_bytes(rest[:LENGTH_BYTES], "big")
                plain += cipher.open(rest[LENGTH_BYTES:end])
                rest = rest[end:]
            assert plain == bytes([number]) * size

    in_loop(run)


@given(place=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_a_changed_byte_ends_the_link_and_nothing_after_it_comes_out(place: int, flip: int) -> None:
    """As a broken network ends one: what came before has come, what is forged has not."""
    messages = [b"one" * 20, b"two" * 20, b"three" * 20]
    stream = bytearray(sealed(*messages))
    place %= len(stream)
    stream[place] ^= flip

    def run() -> None:
        listener = Recorder()
        wire, pipe = joined(listener)
        feed(wire, pipe, bytes(stream))
        assert b"".join(messages).startswith(listener.data)
        length = len(messages[0]) + TAG_BYTES + LENGTH_BYTES
        assert len(listener.data) <= len(b"".join(messages[: place // length]))
        if pipe.cut:
            wire.connection_lost(None)
            assert isinstance(listener.cause, ProtocolViolation)

    in_loop(run)


@given(st.binary(min_size=3, max_size=2_000))
def test_garbage_ends_the_link_or_waits_for_more(garbage: bytes) -> None:
    """Nothing that was not sealed comes out, and memory stays what it was."""

    def run() -> None:
        listener = Recorder()
        wire, pipe = joined(listener)
        feed(wire, pipe, garbage)
        assert not listener.data
        assert len(wire._view) <= LENGTH_BYTES + 4 + MAX_HELLO_BYTES + TAG_BYTES

    in_loop(run)


async def test_a_long_message_before_the_first_proof_is_not_waited_for() -> None:
    """Its announced length alone ends the link: nobody fills memory who has not shown a key."""
    wire, pipe = joined(Recorder())
    feed(wire, pipe, (MAX_HELLO_BYTES + 4 + TAG_BYTES + 1).to_bytes(2, "big"))
    assert pipe.cut


async def test_empty_messages_are_allowed_and_say_nothing() -> None:
    """The contract allows them."""
    listener = Recorder()
    wire, pipe = joined(listener)
    feed(wire, pipe, sealed(b"", b"x", b""))
    assert (bytes(listener.data), listener.pieces, pipe.cut) == (b"x", 1, False)


async def test_a_listener_that_closes_gets_nothing_more() -> None:
    """Also of what the same read has brought."""
    listener = Recorder()
    wire, pipe = joined(listener)
    listener.then_close = wire
    feed(wire, pipe, sealed(b"one", b"two"))
    assert listener.data == b"one"


async def test_the_buffer_is_small_again_after_a_burst() -> None:
    """Thousands of quiet links cost a few KiB each."""
    wire, pipe = joined(Recorder())
    quiet = len(wire._view)
    feed(wire, pipe, sealed(b"hello", *[bytes(MAX_SEALED_BYTES)] * 4, *[b"small"] * 1))
    assert len(wire._view) > MAX_SEALED_BYTES
    cipher = Cipher(A, 6)
    for _ in range(40):
        feed(wire, pipe, framed(cipher.seal(b"small")))
    assert len(wire._view) == quiet


# --- on real sockets ---------------------------------------------------------------------------------------------------


async def test_a_peer_that_does_not_read_holds_senders_back() -> None:
    """What it does not take waits in bounded memory, and goes on when it reads again."""
    ours, theirs = socket.socketpair()
    wire = await SealedWire(Recorder(), Ciphers(send=Cipher(B), receive=Cipher(A))).own(ours)
    sent = 0
    while not wire.full:
        wire.send(bytes(MAX_SEALED_BYTES))
        sent += 1
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    cipher, data, opened = Cipher(B), bytearray(), 0
    while opened < sent:
        data += await loop.sock_recv(theirs, 1 << 20)
        while len(data) >= LENGTH_BYTES + MAX_SEALED_BYTES + TAG_BYTES:
            end = LENGTH_BYTES + MAX_SEALED_BYTES + TAG_BYTES
            assert not any(cipher.open(data[LENGTH_BYTES:end]))
            del data[:end]
            opened += 1
    assert wire.ready
    wire.close()
    await wire.closed
    theirs.close()


async def test_a_paused_wire_leaves_bytes_in_the_socket() -> None:
    """And reads on where it stopped."""
    listener = Recorder()
    ours, theirs = socket.socketpair()
    wire = await SealedWire(listener, Ciphers(send=Cipher(B), receive=Cipher(A))).own(ours)
    wire.pause()
    theirs.sendall(sealed(b"one", b"two"))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not listener.data
    wire.go_on()
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert listener.data == b"onetwo"
    wire.close()
    await wire.closed
    theirs.close()


async def test_a_forged_message_is_a_lost_link_to_the_connection() -> None:
    """With its cause in the text: calls that cannot be repeated fail with it."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    opening = asyncio.create_task(
        Connection.open_over(lambda one: SealedWire(one, Ciphers(send=Cipher(B), receive=Cipher(A))).own(ours))
    )
    cipher = Cipher(A)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(theirs, framed(cipher.seal(encode(a.Welcome(version=1, role="init", name="box")))))
    connection = await opening
    call = asyncio.create_task(connection.ask(r.Usage(id=connection.next_id()), a.UsageOk))
    await loop.sock_sendall(theirs, framed(bytes(100)))
    with pytest.raises(TransportLost, match="not sealed by the other side"):
        await call
    theirs.close()
