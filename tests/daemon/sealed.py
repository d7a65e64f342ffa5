"""The provider's side of sealed links to one daemon, blocking, on any stream: what a test needs and no more."""

from __future__ import annotations

import base64
import secrets
import socket

import msgspec

from sandlot.connection.noise import KEY_BYTES, Ciphers, Responder, StaticKey
from sandlot.connection.sealed import framed
from sandlot.limits import MAX_SEALED_BYTES


class Provider:
    """Knows the secrets of one daemon."""

    def __init__(self) -> None:
        self._key = StaticKey.generate()
        self._enrol, self._resume = secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_BYTES)

    def environment(self) -> dict[str, str]:
        """What the daemon is to be told."""
        return {"SANDLOT_ENROL": _text(self._enrol), "SANDLOT_KEY": _text(self._key.public)}

    def receive(self, stream: socket.socket) -> SealedSocket:
        """A link on a stream that leads to the daemon. Raises EOFError when nobody is there."""
        responder = Responder(self._key)
        claim = msgspec.msgpack.decode(responder.read(_take_message(stream)))
        psk = self._enrol if claim["use"] == "enrol" else self._resume
        answer, ciphers = responder.write(psk, msgspec.msgpack.encode({"resume": self._resume}))
        stream.sendall(framed(answer))
        return SealedSocket(stream, ciphers)


class SealedSocket:
    """As much of a socket as a link uses."""

    def __init__(self, stream: socket.socket, ciphers: Ciphers) -> None:
        self._stream, self._ciphers = stream, ciphers

    def settimeout(self, seconds: float) -> None:
        self._stream.settimeout(seconds)

    def sendall(self, data: bytes) -> None:
        for start in range(0, len(data), MAX_SEALED_BYTES):
            self._stream.sendall(framed(self._ciphers.send.seal(data[start : start + MAX_SEALED_BYTES])))

    def recv(self, _most: int) -> bytes:
        """All of the next message, empty at the end."""
        try:
            return self._ciphers.receive.open(_take_message(self._stream))
        except EOFError:
            return b""

    def close(self) -> None:
        self._stream.close()


def _text(secret: bytes) -> str:
    return base64.urlsafe_b64encode(secret).decode().rstrip("=")


def _take_message(stream: socket.socket) -> bytes:
    return _take(stream, int.from_bytes(_take(stream, 2), "big"))


def _take(stream: socket.socket, size: int) -> bytes:
    taken = b""
    while len(taken) < size:
        part = stream.recv(size - len(taken))
        if not part:
            raise EOFError
        taken += part
    return taken
