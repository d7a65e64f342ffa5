"""The handshake and its ciphers: both sides against each other, and each against what must not pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.connection.noise import KEY_BYTES, LAST_NONCE, TAG_BYTES, Cipher, Ciphers, Initiator, Responder, StaticKey
from sandlot.errors import ProtocolViolation

KEY = StaticKey.from_private(bytes(range(32)))
PSK = b"p" * KEY_BYTES


def linked() -> tuple[Ciphers, Ciphers]:
    """The initiator's and the responder's."""
    initiator, responder = Initiator(KEY.public, PSK), Responder(KEY)
    responder.read(initiator.write(b""))
    answer, theirs = responder.write(PSK, b"")
    return initiator.read(answer)[1], theirs


@given(first=st.binary(max_size=200), second=st.binary(max_size=200))
def test_both_sides_read_each_others_payloads_and_agree_on_keys(first: bytes, second: bytes) -> None:
    """Whatever the payloads, what one seals the other opens, in both directions."""
    initiator, responder = Initiator(KEY.public, PSK), Responder(KEY)
    assert responder.read(initiator.write(first)) == first
    answer, theirs = responder.write(PSK, second)
    payload, ours = initiator.read(answer)
    assert payload == second
    for number in range(3):
        text = b"%d" % number
        assert theirs.receive.open(ours.send.seal(text)) == text
        assert ours.receive.open(theirs.send.seal(text)) == text


def test_two_handshakes_have_nothing_in_common() -> None:
    """Fresh keys each time, from the same lasting ones."""
    assert linked()[0].send.seal(b"same") != linked()[0].send.seal(b"same")


def test_first_message_for_another_static_key_does_not_open() -> None:
    """The responder learns nothing, and says nothing."""
    message = Initiator(StaticKey.generate().public, PSK).write(b"claim")
    with pytest.raises(ProtocolViolation):
        Responder(KEY).read(message)


def test_first_message_with_another_prologue_does_not_open() -> None:
    """Another protocol over the same keys is another protocol."""
    with pytest.raises(ProtocolViolation):
        Responder(KEY).read(Initiator(KEY.public, PSK, prologue=b"sandlot-link-2").write(b""))


def test_initiator_without_the_shared_key_cannot_read_the_answer() -> None:
    """What the answer holds is for who has the secret."""
    initiator, responder = Initiator(KEY.public, b"q" * KEY_BYTES), Responder(KEY)
    responder.read(initiator.write(b""))
    answer, _ = responder.write(PSK, b"resume secret")
    assert b"resume secret" not in answer
    with pytest.raises(ProtocolViolation):
        initiator.read(answer)


def test_responder_without_the_static_key_cannot_answer() -> None:
    """Somebody in the network who pretends to be the provider."""
    initiator, impostor = Initiator(KEY.public, PSK), Responder(StaticKey.generate())
    with pytest.raises(ProtocolViolation):
        impostor.read(initiator.write(b""))


@given(st.data())
def test_a_changed_byte_is_noticed_in_either_message(data: st.DataObject) -> None:
    """Wherever it is."""
    initiator, responder = Initiator(KEY.public, PSK), Responder(KEY)
    first = bytearray(initiator.write(b"payload"))
    if data.draw(st.booleans()):
        first[data.draw(st.integers(0, len(first) - 1))] ^= data.draw(st.integers(1, 255))
        with pytest.raises(ProtocolViolation):
            responder.read(first)
        return
    responder.read(first)
    second = bytearray(responder.write(PSK, b"payload")[0])
    second[data.draw(st.integers(0, len(second) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProtocolViolation):
        initiator.read(second)


@pytest.mark.parametrize("size", [0, 1, KEY_BYTES, KEY_BYTES + TAG_BYTES - 1])
def test_short_message_is_a_breach(size: int) -> None:
    """Cut anywhere, it is an error of the tree and no crash."""
    with pytest.raises(ProtocolViolation):
        Responder(KEY).read(bytes(size))
    initiator = Initiator(KEY.public, PSK)
    initiator.write(b"")
    with pytest.raises(ProtocolViolation):
        initiator.read(bytes(size))


def test_a_public_key_of_low_order_is_a_breach() -> None:
    """With it the shared secret would be zero, whoever has which key."""
    with pytest.raises(ProtocolViolation):
        Responder(KEY).read(bytes(KEY_BYTES + TAG_BYTES))


def test_steps_are_taken_once_and_in_order() -> None:
    """A handshake that was used up, or that failed, is not used again."""
    initiator, responder = Initiator(KEY.public, PSK), Responder(KEY)
    with pytest.raises(RuntimeError):
        responder.write(PSK, b"")
    with pytest.raises(RuntimeError):
        Initiator(KEY.public, PSK).read(bytes(48))
    fresh = Responder(KEY)
    message = initiator.write(b"")
    fresh.read(message)
    with pytest.raises(RuntimeError):
        fresh.read(message)
    with pytest.raises(RuntimeError):
        initiator.write(b"")
    failed = Responder(KEY)
    with pytest.raises(ProtocolViolation):
        failed.read(bytes(100))
    with pytest.raises(RuntimeError):
        failed.read(message)


def test_shared_key_of_another_length_is_our_own_fault() -> None:
    """Never padded, never cut."""
    responder = Responder(KEY)
    responder.read(Initiator(KEY.public, PSK).write(b""))
    with pytest.raises(ValueError, match="pre-shared key"):
        responder.write(b"short", b"")


@pytest.mark.parametrize("order", [(1,), (0, 0), (0, 2), (0, 1, 0)])
def test_messages_open_only_once_and_in_their_order(order: tuple[int, ...]) -> None:
    """A replay, a message left out and one moved are all noticed."""
    ours, theirs = linked()
    sealed = [ours.send.seal(b"%d" % number) for number in range(3)]
    *good, bad = order
    for number in good:
        theirs.receive.open(sealed[number])
    with pytest.raises(ProtocolViolation):
        theirs.receive.open(sealed[bad])


def test_a_message_cannot_be_sent_back() -> None:
    """Each direction has its own key."""
    ours, _ = linked()
    with pytest.raises(ProtocolViolation):
        ours.receive.open(ours.send.seal(b"echo"))


def test_sealing_into_memory_is_the_same_as_sealing() -> None:
    """Two ways for two sizes, one format."""
    key = bytes(range(32))
    out = bytearray(5 + TAG_BYTES)
    Cipher(key, 7).seal_into(b"hello", memoryview(out))
    assert bytes(out) == Cipher(key, 7).seal(b"hello")
    plain = bytearray(5)
    Cipher(key, 7).open_into(out, memoryview(plain))
    assert bytes(plain) == b"hello" == Cipher(key, 7).open(out)


def test_the_last_nonce_is_the_last() -> None:
    """A key that has sealed all it may seals nothing more, rather than one nonce twice."""
    cipher = Cipher(bytes(32), LAST_NONCE)
    cipher.seal(b"")
    for _ in range(2):
        with pytest.raises(ProtocolViolation):
            cipher.seal(b"")


def test_keys_are_not_shown() -> None:
    """A key pair in a log says its public half."""
    assert KEY.private.hex()[:8] not in repr(KEY)
