"""Bytes to frames and frames to messages (`wire/contract.md`, section 1). Whatever comes in is treated as hostile.

`FrameBuffer` bounds memory: it never holds more than one frame of the permitted length and what one read brought. A frame's
cost in time is proportional to its bytes, whatever they are.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from sandlot.errors import ProtocolViolation
from sandlot.limits import MAX_DEPTH, MAX_FRAME_BYTES, MAX_HELLO_BYTES
from sandlot.protocol.answers import Exit, FromDaemon, Kept, Out, Started
from sandlot.protocol.requests import Ack, Data, Message, Pong

PREFIX_BYTES: Final = 4
_SMALL_BYTES: Final = 4_096
"""What a quiet connection keeps for receiving, from its first byte on: ten thousand of them cost 40 MiB."""

T = TypeVar("T", bound=Message)

_encoder = msgspec.msgpack.Encoder()


def encode(message: Message) -> bytes:
    """One frame. That it is not too long is the caller's to see to: arguments are checked where they come in."""
    body = _encoder.encode(message)
    return len(body).to_bytes(PREFIX_BYTES, "big") + body


# --- receiving -------------------------------------------------------------------------------------------------------
class FrameBuffer:
    """Collects received bytes and gives whole frames. Write into `room()`, say how much with `wrote(n)`, then take frames."""

    __slots__ = ("_buffer", "_end", "_limit", "_start", "_view")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._view = memoryview(self._buffer)
        self._start = self._end = 0
        self._limit = MAX_HELLO_BYTES

    def opened(self) -> None:
        """The peer has said who it is: frames may have their full length from now on."""
        self._limit = MAX_FRAME_BYTES

    def room(self) -> memoryview:
        """Where to put the next bytes; never empty."""
        if not self._buffer:
            self._replace(_SMALL_BYTES)
        elif self._start == self._end:
            self._start = self._end = 0
        elif self._end == len(self._buffer) or self._start + self._wanted() > len(self._buffer):
            self._make_room()
        return self._view[self._end :]

    def wrote(self, count: int) -> None:
        self._end += count

    def take(self) -> memoryview | None:
        """The next frame's body, valid until `room()` is called, or None when more bytes are needed.

        Raises:
            ProtocolViolation: the announced length is 0 or beyond the limit.
        """
        start = self._start
        body = start + PREFIX_BYTES
        if self._end < body:
            return None
        length = int.from_bytes(self._view[start:body], "big")
        if not 1 <= length <= self._limit:
            raise ProtocolViolation(f"a frame of {length} bytes; at most {self._limit} may come now")
        end = body + length
        if self._end < end:
            return None
        self._start = end
        return self._view[body:end]

    def shrink(self) -> None:
        """Give back what a burst of long frames needed. For a quiet moment."""
        if self._start == self._end and len(self._buffer) > _SMALL_BYTES:
            self._replace(_SMALL_BYTES)

    @property
    def held_bytes(self) -> int:
        return self._end - self._start

    def _wanted(self) -> int:
        """Bytes of the frame that is being received, its prefix included, as far as is known."""
        if self._end - self._start < PREFIX_BYTES:
            return PREFIX_BYTES
        length = int.from_bytes(self._view[self._start : self._start + PREFIX_BYTES], "big")
        return PREFIX_BYTES + min(length, self._limit)

    def _make_room(self) -> None:
        wanted = self._wanted()
        if wanted > len(self._buffer):
            self._replace(max(wanted, min(2 * len(self._buffer), PREFIX_BYTES + MAX_FRAME_BYTES)))
            return
        held = bytes(self._view[self._start : self._end])
        self._view[: len(held)] = held
        self._start, self._end = 0, len(held)

    def _replace(self, size: int) -> None:
        buffer = bytearray(size)
        count = self._end - self._start
        buffer[:count] = self._view[self._start : self._end]
        self._buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, count


# --- decoding --------------------------------------------------------------------------------------------------------
class _Kept(Kept, frozen=True, forbid_unknown_fields=True):
    pass


class _Exit(Exit, frozen=True, forbid_unknown_fields=True):
    out: _Kept = _Kept()
    err: _Kept = _Kept()


class _Out(Out, frozen=True, forbid_unknown_fields=True):
    pass


class _Data(Data, frozen=True, forbid_unknown_fields=True):
    pass


class _Started(Started, frozen=True, forbid_unknown_fields=True):
    pass


class _Ack(Ack, frozen=True, forbid_unknown_fields=True):
    pass


class _Pong(Pong, frozen=True, forbid_unknown_fields=True):
    pass


class _Envelope(Struct, frozen=True):
    t: str
    id: int = 0


_known = msgspec.msgpack.Decoder(_Exit | _Out | _Data | _Started | _Ack | _Pong)
"""The frequent messages when they hold known fields only: their types bound the nesting, so they need no second look."""
_lenient = msgspec.msgpack.Decoder(FromDaemon)
_envelope = msgspec.msgpack.Decoder(_Envelope)
_TYPES: Final = frozenset(kind.__struct_config__.tag for kind in FromDaemon.__args__)


def decode(body: memoryview | bytes) -> Message | None:
    """The message of one frame from a daemon; None when its type is unknown, which a client ignores.

    Raises:
        ProtocolViolation: not one MessagePack map, nested too deeply, or a known field has the wrong type or range.
    """
    try:
        known: Message = _known.decode(body)
        return known
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        pass  # anything rarer, or wrong: the careful way tells which
    check_nesting(body)
    try:
        if _envelope.decode(body).t not in _TYPES:
            return None
        message: Message = _lenient.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolViolation(f"a frame that is no message: {error}") from None
    return message


def decode_as(body: memoryview | bytes, decoder: msgspec.msgpack.Decoder[T]) -> T:
    """The body of an `ok` as the shape that its request calls for.

    Raises:
        ProtocolViolation: a field is missing, or has the wrong type or range.
    """
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ProtocolViolation(f"an answer of the wrong shape: {error}") from None


# --- nesting -----------------------------------------------------------------------------------------------------------
def _describe(first: int) -> tuple[int, int, int]:
    """For a MessagePack value's first byte: bytes of its header and fixed payload, bytes of its length field, what it holds.

    The last is 0 for a scalar without a length, 1 for a counted payload, 2 for an array, 3 for a map.
    """
    counted = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
    fixed = {0xCA: 5, 0xCB: 9, 0xCC: 2, 0xCD: 3, 0xCE: 5, 0xCF: 9, 0xD0: 2, 0xD1: 3, 0xD2: 5, 0xD3: 9}
    if first in counted:
        return 1 + counted[first], counted[first], 1
    if first in (0xDC, 0xDD):
        return (3, 2, 2) if first == 0xDC else (5, 4, 2)
    if first in (0xDE, 0xDF):
        return (3, 2, 3) if first == 0xDE else (5, 4, 3)
    if 0xA0 <= first <= 0xBF:
        return 1 + (first & 0x1F), 0, 0
    if first in (0xC1, 0xC7, 0xC8, 0xC9, 0xD4, 0xD5, 0xD6, 0xD7, 0xD8):
        return 0, 0, 0  # unused, and extension types: not in the contract
    return fixed.get(first, 1), 0, 0


_VALUES: Final = tuple(_describe(first) for first in range(256))


def check_nesting(body: memoryview | bytes) -> None:
    """Walk the frame without building anything.

    Raises:
        ProtocolViolation: not exactly one map, cut short, an extension type, or more than `MAX_DEPTH` levels.
    """
    open_items: list[int] = []  # values still to come, for each open array and map
    position, size = 0, len(body)
    if size == 0 or not (0x80 <= body[0] <= 0x8F or body[0] in (0xDE, 0xDF)):
        raise ProtocolViolation("a frame that is not a map")
    while True:
        if position >= size:
            raise ProtocolViolation("a frame that is cut short")
        first = body[position]
        position, items = _step(body, position, first)
        if open_items:
            open_items[-1] -= 1
        if items >= 0:
            if len(open_items) == MAX_DEPTH:
                raise ProtocolViolation(f"a frame nested more than {MAX_DEPTH} levels")
            open_items.append(items)
        while open_items and open_items[-1] == 0:
            open_items.pop()
        if not open_items:
            break
    if position != size:
        raise ProtocolViolation("bytes after the end of the map" if position < size else "a frame that is cut short")


def _step(body: memoryview | bytes, position: int, first: int) -> tuple[int, int]:
    """Where the next value starts, and how many values this one holds (-1: it is no container)."""
    if 0x80 <= first <= 0x9F:
        return position + 1, (first & 0x0F) * (2 if first <= 0x8F else 1)
    header, field, kind = _VALUES[first]
    if header == 0:
        raise ProtocolViolation(f"a value of the type {first:#x}, which is not in the contract")
    after = position + header
    if kind == 0:
        return after, -1
    length = int.from_bytes(body[position + 1 : position + 1 + field], "big")
    if kind == 1:
        return after + length, -1
    return after, length * (2 if kind == 3 else 1)
