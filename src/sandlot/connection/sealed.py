"""A wire whose bytes are sealed: Noise transport messages on the socket, plain bytes to whoever listens.

On the socket stands `u16 length | sealed bytes` again and again (`wire/contract.md`, "The link across a network"). Where one
message ends and the next begins means nothing to the contract above: it is one stream of bytes.
"""

from __future__ import annotations

from typing import Final

from sandlot.connection.noise import TAG_BYTES, Ciphers
from sandlot.connection.wire import Listener, Wire
from sandlot.errors import ProtocolViolation
from sandlot.limits import MAX_HELLO_BYTES, MAX_SEALED_BYTES

LENGTH_BYTES: Final = 2

_LONGEST_BYTES: Final = MAX_SEALED_BYTES + TAG_BYTES

_FIRST_BYTES: Final = 4 + MAX_HELLO_BYTES + TAG_BYTES
"""The longest message from a peer that has proved nothing yet: a frame with its hello."""

_SMALL_BYTES: Final = LENGTH_BYTES + _FIRST_BYTES
"""What a quiet link keeps for receiving."""

_LARGE_BYTES: Final = 2 * (LENGTH_BYTES + _LONGEST_BYTES)
"""While much arrives: while one message is incomplete, another can be read in one piece."""

_QUIET_READS: Final = 16
"""So many reads in a row that a small buffer would have held, and it is small again."""


def framed(message: bytes) -> bytes:
    """A Noise message as it stands on the socket."""
    return len(message).to_bytes(LENGTH_BYTES, "big") + message


class SealedWire(Wire):
    """A connected stream on which the handshake is over. A message that does not open ends it as a broken network does.

    Memory is bounded by one buffer for what comes; it grows beyond what a hello needs only after the peer has proved, by a
    message that opened, that it has the keys.
    """

    def __init__(self, listener: Listener, ciphers: Ciphers, *, preface: bytes = b"") -> None:
        """`preface`: the handshake's last message, which leaves in one write with the first of the sealed ones."""
        super().__init__(listener)
        self._preface = preface
        self._outgoing = ciphers.send
        self._incoming = ciphers.receive
        self._view = memoryview(bytearray(_SMALL_BYTES))
        self._start = self._end = 0
        self._limit = _FIRST_BYTES
        self._quiet_reads = 0
        self._breach: ProtocolViolation | None = None

    def send(self, data: bytes) -> None:
        """One call is one write, and one message unless it is long."""
        if self._transport is None or self._transport.is_closing():
            return
        try:
            sealed = framed(self._outgoing.seal(data)) if len(data) <= MAX_SEALED_BYTES else self._seal_long(data)
        except ProtocolViolation as breach:
            self._break(breach)
        else:
            preface, self._preface = self._preface, b""
            self._transport.write(preface + sealed if preface else sealed)

    def _seal_long(self, data: bytes) -> bytearray:
        """Several messages in one piece of memory: what is long is copied once, by being sealed."""
        messages = -(-len(data) // MAX_SEALED_BYTES)
        sealed = bytearray(len(data) + messages * (LENGTH_BYTES + TAG_BYTES))
        source, target, at = memoryview(data), memoryview(sealed), 0
        for begin in range(0, len(data), MAX_SEALED_BYTES):
            part = source[begin : begin + MAX_SEALED_BYTES]
            length = len(part) + TAG_BYTES
            target[at : at + LENGTH_BYTES] = length.to_bytes(LENGTH_BYTES, "big")
            at += LENGTH_BYTES
            self._outgoing.seal_into(part, target[at : at + length])
            at += length
        return sealed

    # --- called by the loop -----------------------------------------------------------------------------------------
    def get_buffer(self, sizehint: int) -> memoryview:
        if self._start == self._end:
            self._start = self._end = 0
        elif self._start + self._wanted() > len(self._view):
            self._move(len(self._view) if self._wanted() <= len(self._view) else _LARGE_BYTES)
        return self._view[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        filled = self._end == len(self._view)
        try:
            self._open_all()
        except ProtocolViolation as breach:
            self._break(breach)
        else:
            self._fit(nbytes, filled)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(self._breach or exc)

    # --- inside -----------------------------------------------------------------------------------------------------
    def _open_all(self) -> None:
        """Hand on every message that is whole, as long as the listener leaves the wire open."""
        view = self._view
        while self._transport is not None and not self._transport.is_closing():
            body = self._start + LENGTH_BYTES
            if self._end < body:
                return
            length = view[body - 2] << 8 | view[body - 1]
            if not TAG_BYTES <= length <= self._limit:
                raise ProtocolViolation(f"a sealed message of {length} bytes; {TAG_BYTES} to {self._limit} may come now")
            if self._end < body + length:
                return
            self._start = body + length
            self._hand_on(view[body : body + length])

    def _hand_on(self, sealed: memoryview) -> None:
        size = len(sealed) - TAG_BYTES
        room = self.listener.room()
        if size <= len(room):
            self._incoming.open_into(sealed, room[:size])
            self._limit = _LONGEST_BYTES
            if size:
                self.listener.received(size)
            return
        plain = memoryview(self._incoming.open(sealed))
        self._limit = _LONGEST_BYTES
        while plain:
            count = min(len(room), len(plain))
            room[:count] = plain[:count]
            self.listener.received(count)
            plain, room = plain[count:], self.listener.room()

    def _break(self, breach: ProtocolViolation) -> None:
        self._breach = breach
        self.abort()

    def _wanted(self) -> int:
        """Bytes of the message that is being received, its length included, as far as is known."""
        if self._end - self._start < LENGTH_BYTES:
            return LENGTH_BYTES
        return LENGTH_BYTES + (self._view[self._start] << 8 | self._view[self._start + 1])

    def _fit(self, nbytes: int, filled: bool) -> None:
        """Large while reads fill the buffer, small again when they have been small for a while."""
        large = len(self._view) > _SMALL_BYTES
        if not large:
            if filled and self._limit == _LONGEST_BYTES:
                self._move(_LARGE_BYTES)
            return
        self._quiet_reads = self._quiet_reads + 1 if nbytes < _SMALL_BYTES else 0
        if self._quiet_reads >= _QUIET_READS and self._start == self._end:
            self._quiet_reads = 0
            self._move(_SMALL_BYTES)

    def _move(self, size: int) -> None:
        """What is held to the front of a buffer of this size, which may be the same one."""
        held = bytes(self._view[self._start : self._end])
        if size != len(self._view):
            self._view = memoryview(bytearray(size))
        self._view[: len(held)] = held
        self._start, self._end = 0, len(held)
