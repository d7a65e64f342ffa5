"""`wire/vectors/links.json`: whole links with fixed keys, made by the daemon's own library, as the Python side runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from sandlot.backends.kubernetes.links.registrar import Claim
from sandlot.connection.noise import Ciphers, Initiator, Responder, StaticKey
from sandlot.connection.sealed import LENGTH_BYTES, framed
from sandlot.errors import ProtocolViolation

ROWS = json.loads((Path(__file__).parents[3] / "wire" / "vectors" / "links.json").read_text())
GOOD = [row for row in ROWS if "fails" not in row]


def name(row: dict[str, Any]) -> str:
    return str(row["name"])


def raw(text: str) -> bytes:
    return bytes.fromhex(text)


def body(text: str) -> bytes:
    """A message without its length, which has to be right."""
    message = raw(text)
    assert int.from_bytes(message[:LENGTH_BYTES], "big") == len(message) - LENGTH_BYTES
    return message[LENGTH_BYTES:]


def fixed(private: str) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(raw(private))


def responder(row: dict[str, Any]) -> Responder:
    key = StaticKey.from_private(raw(row["provider_private"]))
    return Responder(key, ephemeral=lambda: fixed(row["provider_ephemeral_private"]))


def initiator(row: dict[str, Any]) -> Initiator:
    return Initiator(raw(row["provider_public"]), raw(row["secret"]), ephemeral=lambda: fixed(row["daemon_ephemeral_private"]))


def answered(row: dict[str, Any]) -> Ciphers:
    """The provider's side after message 2, which is the one of the row."""
    ours = responder(row)
    payload = ours.read(body(row["message_1"]))
    claim = Claim.read(payload)
    assert (claim.name, claim.use, claim.boot.hex()) == tuple(row["opening"][key] for key in ("name", "use", "boot"))
    message, ciphers = ours.write(raw(row["secret"]), raw(row["message_2_payload"]))
    assert framed(message).hex() == row["message_2"]
    return ciphers


def run(row: dict[str, Any], ciphers: Ciphers) -> None:
    """The provider's side of what follows: its own messages come out as in the row, the daemon's open."""
    for part in row["transport"]:
        if part["from"] == "provider":
            assert framed(ciphers.send.seal(raw(part["plain"]))).hex() == part["message"]
        else:
            assert ciphers.receive.open(body(part["message"])).hex() == part["plain"]


@pytest.mark.parametrize("row", GOOD, ids=name)
def test_the_provider_answers_and_seals_as_in_the_example(row: dict[str, Any]) -> None:
    """To the byte."""
    run(row, answered(row))


@pytest.mark.parametrize("row", GOOD, ids=name)
def test_the_scripted_daemon_speaks_as_in_the_example(row: dict[str, Any]) -> None:
    """So that tests against it are tests against the contract."""
    theirs = initiator(row)
    assert framed(theirs.write(raw(row["message_1_payload"]))).hex() == row["message_1"]
    payload, ciphers = theirs.read(body(row["message_2"]))
    assert payload.hex() == row["message_2_payload"]
    for part in row["transport"]:
        if part["from"] == "daemon":
            assert framed(ciphers.send.seal(raw(part["plain"]))).hex() == part["message"]
        else:
            assert ciphers.receive.open(body(part["message"])).hex() == part["plain"]


@pytest.mark.parametrize("row", [row for row in ROWS if row.get("fails") == "message_1"], ids=name)
def test_a_bad_first_message_is_refused(row: dict[str, Any]) -> None:
    """By the provider, without an answer."""
    ours = responder(row)
    with pytest.raises(ProtocolViolation):
        Claim.read(ours.read(body(row["message_1"])))


@pytest.mark.parametrize("row", [row for row in ROWS if row.get("fails") == "message_2"], ids=name)
def test_a_bad_second_message_is_refused(row: dict[str, Any]) -> None:
    """By the daemon."""
    theirs = initiator(row)
    theirs.write(raw(row["message_1_payload"]))
    with pytest.raises(ProtocolViolation):
        theirs.read(body(row["message_2"]))


@pytest.mark.parametrize("row", [row for row in ROWS if row.get("fails") == "transport"], ids=name)
def test_a_bad_transport_message_is_refused(row: dict[str, Any]) -> None:
    """By the provider, whatever came before."""
    ciphers = answered(row)
    with pytest.raises(ProtocolViolation):
        run(row, ciphers)


def test_every_kind_of_failure_has_an_example() -> None:
    """None of the tests above is empty."""
    assert {row.get("fails") for row in ROWS} == {None, "message_1", "message_2", "transport"}
