"""Bytes to frames: incremental, bounded, and strict about what a frame is."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.errors import ProtocolViolation
from sandlot.limits import MAX_DEPTH, MAX_FRAME_BYTES, MAX_HELLO_BYTES
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.protocol.frames import FrameBuffer, check_nesting, decode, encode

pack = msgspec.msgpack.encode


def put(buffer: FrameBuffer, data: bytes) -> list[bytes]:
    """Feed bytes as a socket would; the bodies of all frames that are complete then."""
    bodies = []
    while data:
        room = buffer.room()
        count = min(len(room), len(data))
        room[:count] = data[:count]
        buffer.wrote(count)
        data = data[count:]
        while (body := buffer.take()) is not None:
            bodies.append(bytes(body))
    return bodies


def opened() -> FrameBuffer:
    buffer = FrameBuffer()
    buffer.opened()
    return buffer


@given(st.lists(st.binary(min_size=1, max_size=40_000), max_size=8), st.data())
def test_frames_come_out_as_they_went_in_however_they_are_cut(bodies: list[bytes], data: st.DataObject) -> None:
    """Any split of the byte stream gives the same frames in the same order."""
    stream = b"".join(len(body).to_bytes(4, "big") + body for body in bodies)
    buffer, found = opened(), []
    while stream:
        count = data.draw(st.integers(1, len(stream)))
        found += put(buffer, stream[:count])
        stream = stream[count:]
    assert found == bodies
    assert buffer.held_bytes == 0


def test_longest_frame_passes_and_one_byte_more_does_not() -> None:
    """The limit itself is allowed."""
    body = bytes(MAX_FRAME_BYTES)
    assert put(opened(), len(body).to_bytes(4, "big") + body) == [body]
    with pytest.raises(ProtocolViolation):
        put(opened(), (MAX_FRAME_BYTES + 1).to_bytes(4, "big"))


def test_before_hello_only_short_frames_may_come() -> None:
    """Whoever has not said who it is gets little memory."""
    body = bytes(MAX_HELLO_BYTES)
    assert put(FrameBuffer(), len(body).to_bytes(4, "big") + body) == [body]
    with pytest.raises(ProtocolViolation):
        put(FrameBuffer(), (MAX_HELLO_BYTES + 1).to_bytes(4, "big"))


def test_announced_length_alone_takes_no_more_memory_than_one_frame() -> None:
    """A header that announces the longest frame, again on many connections, costs one buffer each and is given back."""
    tracemalloc.start()
    try:
        buffer = opened()
        put(buffer, MAX_FRAME_BYTES.to_bytes(4, "big") + b"x")
        assert len(buffer.room()) <= MAX_FRAME_BYTES + 4
        held, _ = tracemalloc.get_traced_memory()
        assert held < 1.1 * MAX_FRAME_BYTES + 100_000
        put(buffer, bytes(MAX_FRAME_BYTES - 1))
        buffer.shrink()
        held, _ = tracemalloc.get_traced_memory()
        assert held < 100_000
    finally:
        tracemalloc.stop()


# --- messages ----------------------------------------------------------------------------------------------------------
def test_unknown_type_is_ignored() -> None:
    """A daemon may say what this client does not know yet."""
    assert decode(pack({"t": "next_year", "id": 1, "x": [1]})) is None


def test_unknown_fields_are_ignored_in_frequent_and_rare_messages() -> None:
    """Both ways of decoding tolerate what was added later."""
    assert decode(pack({"t": "pong", "id": 1, "later": {"a": 1}})) == r.Pong(id=1)
    assert decode(pack({"t": "gap", "id": 1, "s": 1, "from": 0, "to": 5, "later": [None]})) == a.Gap(1, 1, 0, 5)


def test_known_nested_structures_may_have_unknown_fields_too() -> None:
    """Also inside a map that is known."""
    found = decode(pack({"t": "exit", "id": 1, "code": 0, "out": {"total": 1, "kept": 1, "d": b"x", "later": {"a": 1}}}))
    assert isinstance(found, a.Exit)
    assert found.out.d == b"x"


@pytest.mark.parametrize("levels", range(1, 8))
def test_nesting_is_bounded_wherever_it_is(levels: int) -> None:
    """`MAX_DEPTH` levels pass, one more does not, also in fields that nobody knows."""
    value: object = 1
    for level in range(levels - 1):
        value = [value] if level % 2 else {"k": value}
    frame = pack({"t": "pong", "id": 1, "x": value})
    if levels <= MAX_DEPTH:
        assert decode(frame) == r.Pong(id=1)
    else:
        with pytest.raises(ProtocolViolation):
            decode(frame)


def test_hundred_thousand_levels_neither_crash_nor_pass() -> None:
    """Depth is counted, not recursed into."""
    with pytest.raises(ProtocolViolation):
        decode(b"\x83\xa1t\xa4pong\xa2id\x01\xa1x" + b"\x91" * 100_000 + b"\xc0")


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=50) | st.binary(max_size=300),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=5), inner, max_size=20),
    max_leaves=40,
)


def depth(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth, value), default=0)
    return 0


@given(st.dictionaries(st.text(max_size=5), plain, max_size=20))
def test_walker_agrees_with_a_real_decoder(value: dict[str, object]) -> None:
    """Every well-formed map of permitted depth passes, every deeper one is refused, whatever types are in it."""
    frame = pack(value)
    if depth(value) <= MAX_DEPTH:
        check_nesting(frame)
    else:
        with pytest.raises(ProtocolViolation):
            check_nesting(frame)


@given(st.dictionaries(st.text(max_size=5), plain, max_size=20), st.data())
def test_walker_refuses_every_cut_and_every_addition(value: dict[str, object], data: st.DataObject) -> None:
    """A frame is exactly one map."""
    frame = pack(value)
    cut = data.draw(st.integers(0, len(frame) - 1))
    for wrong in (frame[:cut], frame + b"\x00"):
        with pytest.raises(ProtocolViolation):
            check_nesting(wrong)


@given(st.binary(max_size=2_000))
def test_any_bytes_are_a_message_or_a_breach(data: bytes) -> None:
    """Nothing else ever comes out of decoding."""
    try:
        message = decode(data)
    except ProtocolViolation:
        return
    assert message is None or isinstance(message, r.Message)


@given(st.binary(max_size=400), st.integers(0, 300), st.binary(min_size=1, max_size=4))
def test_mutated_messages_are_a_message_or_a_breach(output: bytes, position: int, change: bytes) -> None:
    """The same for messages that are almost right."""
    kept = a.Kept(total=len(output), kept=len(output), d=output)
    frame = bytearray(encode(a.Exit(id=1, code=0, out=kept, unenforced=("cpu",)))[4:])
    position %= len(frame)
    frame[position : position + len(change)] = change
    try:
        message = decode(bytes(frame))
    except ProtocolViolation:
        return
    assert message is None or isinstance(message, r.Message)
