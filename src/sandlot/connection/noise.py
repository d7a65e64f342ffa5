"""Noise_NKpsk2_25519_ChaChaPoly_BLAKE2s, both sides, and nothing else of Noise (revision 34, https://noiseprotocol.org).

    -> e, es          payload 1: from whoever knows the responder's public key; readable by the responder alone
    <- e, ee, psk     payload 2: readable only by who has the pre-shared key too

What follows message 2 is sealed by one key a direction. That the initiator holds the pre-shared key is proved by its first
message after that, not before. The primitives are those of `cryptography` and of the standard library; here stands only the
order in which they are called. Nothing here waits or knows a socket.
"""

from __future__ import annotations

import hmac
from hashlib import blake2s
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from sandlot.errors import ProtocolViolation

PROTOCOL: Final = b"Noise_NKpsk2_25519_ChaChaPoly_BLAKE2s"
PROLOGUE: Final = b"sandlot-link-1"
KEY_BYTES: Final = 32
"""Of a public key, a private key, a pre-shared key and a hash."""
TAG_BYTES: Final = 16
LAST_NONCE: Final = 2**64 - 2
"""The highest that seals a message: the one above is reserved by Noise, and a nonce never comes twice under a key."""

Buffer = bytes | bytearray | memoryview


class Random(Protocol):
    """Where a fresh private key comes from; another one only in tests against fixed examples."""

    def __call__(self) -> X25519PrivateKey: ...


class Cipher:
    """One key of one direction. Each message uses the next nonce, so none can be left out, repeated or moved."""

    __slots__ = ("_aead", "_nonce")

    def __init__(self, key: bytes, nonce: int = 0) -> None:
        self._aead = ChaCha20Poly1305(key)
        self._nonce = nonce

    def seal(self, plain: Buffer) -> bytes:
        return self._aead.encrypt(self._next(), plain, None)

    def seal_into(self, plain: Buffer, out: memoryview) -> None:
        """`out` is `TAG_BYTES` longer than `plain`."""
        self._aead.encrypt_into(self._next(), plain, None, out)

    def open(self, sealed: Buffer) -> bytes:
        """Raises `ProtocolViolation` when it is not the next message of this key."""
        try:
            return self._aead.decrypt(self._next(), sealed, None)
        except InvalidTag:
            raise ProtocolViolation("a message that was not sealed by the other side, or not in this place") from None

    def open_into(self, sealed: Buffer, out: memoryview) -> None:
        """`out` is `TAG_BYTES` shorter than `sealed`. Raises as `open`."""
        try:
            self._aead.decrypt_into(self._next(), sealed, None, out)
        except InvalidTag:
            raise ProtocolViolation("a message that was not sealed by the other side, or not in this place") from None

    def _next(self) -> bytes:
        nonce = self._nonce
        if nonce > LAST_NONCE:
            raise ProtocolViolation("a link's key has been used up; a new link has a new one")
        self._nonce = nonce + 1
        return (nonce << 32).to_bytes(12, "little")


class Ciphers:
    """What a finished handshake leaves: a key to send with and one to receive with."""

    __slots__ = ("receive", "send")

    def __init__(self, send: Cipher, receive: Cipher) -> None:
        self.send, self.receive = send, receive


class StaticKey:
    """The responder's lasting key pair."""

    __slots__ = ("_private", "public")

    def __init__(self, private: X25519PrivateKey) -> None:
        self._private = private
        self.public = private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> StaticKey:
        return cls(X25519PrivateKey.generate())

    @classmethod
    def from_private(cls, private: bytes) -> StaticKey:
        """Raises `ValueError` when that is no 32 bytes."""
        return cls(X25519PrivateKey.from_private_bytes(private))

    @property
    def private(self) -> bytes:
        """The secret half, for a state file that nobody else may read."""
        return self._private.private_bytes_raw()

    def __repr__(self) -> str:
        return f"<StaticKey {self.public.hex()[:16]}>"

    def shared(self, public: bytes) -> bytes:
        return _shared(self._private, public)


class _Side:
    """Each step once, in its order. Whoever fails in a step is of no more use."""

    def __init__(self, first: str) -> None:
        self._step = first

    def _take_step(self, expected: str) -> None:
        if self._step != expected:
            raise RuntimeError(f"a handshake that is to {self._step or 'be thrown away'} was asked to {expected}")
        self._step = ""


class Responder(_Side):
    """The side that has the static key: `read`, then `write`, once each."""

    def __init__(self, static: StaticKey, *, prologue: bytes = PROLOGUE, ephemeral: Random = X25519PrivateKey.generate) -> None:
        super().__init__("read")
        self._symmetric = _Symmetric(prologue, static.public)
        self._static = static
        self._generate = ephemeral
        self._theirs = b""

    def read(self, message: Buffer) -> bytes:
        """Message 1: its payload, which proves nothing yet of who sent it.

        Raises:
            ProtocolViolation: too short, or not meant for this static key.
        """
        self._take_step("read")
        symmetric = self._symmetric
        self._theirs = symmetric.take_key(message)
        symmetric.mix_key(self._static.shared(self._theirs))
        payload = symmetric.open(memoryview(message)[KEY_BYTES:])
        self._step = "write"
        return payload

    def write(self, psk: bytes, payload: bytes) -> tuple[bytes, Ciphers]:
        """Message 2, and the keys for all that follows."""
        self._take_step("write")
        symmetric = self._symmetric
        ephemeral = self._generate()
        public = symmetric.give_key(ephemeral)
        symmetric.mix_key(_shared(ephemeral, self._theirs))
        symmetric.mix_psk(psk)
        message = public + symmetric.seal(payload)
        from_initiator, from_responder = symmetric.split()
        return message, Ciphers(send=from_responder, receive=from_initiator)


class Initiator(_Side):
    """The side that knows the other's public key: `write`, then `read`, once each."""

    def __init__(
        self, remote: bytes, psk: bytes, *, prologue: bytes = PROLOGUE, ephemeral: Random = X25519PrivateKey.generate
    ) -> None:
        super().__init__("write")
        self._symmetric = _Symmetric(prologue, remote)
        self._remote = remote
        self._psk = psk
        self._ephemeral = ephemeral()

    def write(self, payload: bytes) -> bytes:
        """Message 1."""
        self._take_step("write")
        symmetric = self._symmetric
        public = symmetric.give_key(self._ephemeral)
        symmetric.mix_key(_shared(self._ephemeral, self._remote))
        message = public + symmetric.seal(payload)
        self._step = "read"
        return message

    def read(self, message: Buffer) -> tuple[bytes, Ciphers]:
        """Message 2: its payload, and the keys for all that follows.

        Raises:
            ProtocolViolation: too short, or from a side without the static or the pre-shared key.
        """
        self._take_step("read")
        symmetric = self._symmetric
        theirs = symmetric.take_key(message)
        symmetric.mix_key(_shared(self._ephemeral, theirs))
        symmetric.mix_psk(self._psk)
        payload = symmetric.open(memoryview(message)[KEY_BYTES:])
        from_initiator, from_responder = symmetric.split()
        return payload, Ciphers(send=from_initiator, receive=from_responder)


# --- inside: the symmetric state of Noise ----------------------------------------------------------------------------
class _Symmetric:
    """Chaining key, hash of all that was said, and the key of the moment (section 5.2). Every key is used for one message."""

    __slots__ = ("_chaining", "_hash", "_key")

    def __init__(self, prologue: bytes, responder: bytes) -> None:
        start = blake2s(PROTOCOL).digest()  # longer than a hash, so it is hashed
        self._chaining = start
        self._key = b""
        self._hash = blake2s(start + prologue).digest()
        self.mix_hash(responder)  # the pre-message of NK

    def mix_hash(self, data: Buffer) -> None:
        self._hash = blake2s(self._hash + data).digest()

    def mix_key(self, material: bytes) -> None:
        self._chaining, self._key = _derive(self._chaining, material, 2)

    def mix_psk(self, psk: bytes) -> None:
        if len(psk) != KEY_BYTES:
            raise ValueError(f"a pre-shared key of {len(psk)} bytes; it has {KEY_BYTES}")
        self._chaining, hashed, self._key = _derive(self._chaining, psk, 3)
        self.mix_hash(hashed)

    def give_key(self, ephemeral: X25519PrivateKey) -> bytes:
        """The token `e`, written; with a pre-shared key in the pattern it is mixed into the key too."""
        public = ephemeral.public_key().public_bytes_raw()
        self.mix_hash(public)
        self.mix_key(public)
        return public

    def take_key(self, message: Buffer) -> bytes:
        """The token `e`, read."""
        if len(message) < KEY_BYTES + TAG_BYTES:
            raise ProtocolViolation(f"a handshake message of {len(message)} bytes")
        public = bytes(message[:KEY_BYTES])
        self.mix_hash(public)
        self.mix_key(public)
        return public

    def seal(self, payload: bytes) -> bytes:
        sealed = ChaCha20Poly1305(self._key).encrypt(bytes(12), payload, self._hash)
        self.mix_hash(sealed)
        return sealed

    def open(self, sealed: Buffer) -> bytes:
        try:
            payload = ChaCha20Poly1305(self._key).decrypt(bytes(12), sealed, self._hash)
        except InvalidTag:
            raise ProtocolViolation("a handshake with other keys") from None
        self.mix_hash(sealed)
        return payload

    def split(self) -> tuple[Cipher, Cipher]:
        """The keys of what the initiator and of what the responder sends."""
        first, second = _derive(self._chaining, b"", 2)
        return Cipher(first), Cipher(second)


def _shared(private: X25519PrivateKey, public: bytes) -> bytes:
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:  # a point of low order: everybody would know the secret
        raise ProtocolViolation("a public key that gives no shared secret") from None


def _derive(chaining: bytes, material: bytes, count: int) -> tuple[bytes, ...]:
    """HKDF of section 4.3: `count` outputs of a hash's length."""
    secret = hmac.digest(chaining, material, blake2s)
    outputs: list[bytes] = []
    last = b""
    for number in range(1, count + 1):
        last = hmac.digest(secret, last + bytes((number,)), blake2s)
        outputs.append(last)
    return tuple(outputs)
