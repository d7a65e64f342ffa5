"""Who is let in with which secret."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandlot.backends.kubernetes.links.registrar import Claim, Conflict, Registrar, Secrets, Stale, Unknown
from sandlot.errors import ProtocolViolation

FIRST, OTHER = b"boot-one", b"boot-two"


def enrol(boot: bytes = FIRST) -> Claim:
    return Claim(name="box", use="enrol", boot=boot)


def resume(boot: bytes = FIRST) -> Claim:
    return Claim(name="box", use="resume", boot=boot)


@pytest.fixture
def registrar() -> Registrar:
    made = Registrar()
    made.register("box")
    return made


def test_enrolment_secret_is_that_of_the_pod_until_it_is_burned() -> None:
    """However many links broke before one proved it."""
    registrar = Registrar()
    given = registrar.register("box")
    first, second = registrar.admit(enrol()), registrar.admit(enrol())
    assert first.psk == second.psk == given.secret
    assert first.resume != second.resume


def test_proof_burns_the_enrolment_and_makes_that_links_secret_the_valid_one(registrar: Registrar) -> None:
    """Of two that were granted only the proved one counts."""
    lost, proved = registrar.admit(enrol()), registrar.admit(enrol())
    registrar.confirm(proved)
    assert registrar.admit(resume()).psk == proved.resume != lost.resume
    with pytest.raises(Stale):
        registrar.admit(enrol())
    with pytest.raises(Stale):
        registrar.confirm(lost)
    assert registrar.admit(resume()).psk == proved.resume


def test_resume_grants_the_same_secret_again(registrar: Registrar) -> None:
    """Any number of times, also on links that are open at once."""
    granted = registrar.admit(enrol())
    registrar.confirm(granted)
    for _ in range(3):
        again = registrar.admit(resume())
        registrar.confirm(again)
        assert (again.psk, again.resume) == (granted.resume, granted.resume)


def test_resume_before_any_proof_is_refused(registrar: Registrar) -> None:
    """The daemon then tries its enrolment secret."""
    registrar.admit(enrol())
    with pytest.raises(Stale):
        registrar.admit(resume())


@pytest.mark.parametrize("claim", [enrol(OTHER), resume(OTHER)])
def test_another_boot_after_the_proof_is_a_conflict(registrar: Registrar, claim: Claim) -> None:
    """Somebody else has used the secret, before or now."""
    registrar.confirm(registrar.admit(enrol()))
    with pytest.raises(Conflict) as refusal:
        registrar.admit(claim)
    assert refusal.value.name == "box"


def test_of_two_boots_at_once_the_second_to_prove_is_the_conflict(registrar: Registrar) -> None:
    """Both were granted while nothing was proved."""
    one, two = registrar.admit(enrol(FIRST)), registrar.admit(enrol(OTHER))
    registrar.confirm(two)
    with pytest.raises(Conflict):
        registrar.confirm(one)
    assert registrar.admit(resume(OTHER)).psk == two.resume


def test_unproved_claims_change_nothing(registrar: Registrar) -> None:
    """Whoever knows a name and the public key can make as many as they like."""
    for number in range(100):
        registrar.admit(enrol(number.to_bytes(8, "big")))
    registrar.confirm(registrar.admit(enrol()))
    assert registrar.admit(resume()).claim.boot == FIRST


def test_a_forgotten_name_is_unknown_at_once(registrar: Registrar) -> None:
    """Also to a link that is half open."""
    grant = registrar.admit(enrol())
    registrar.forget("box")
    registrar.forget("box")
    assert "box" not in registrar
    with pytest.raises(Unknown):
        registrar.admit(enrol())
    with pytest.raises(Unknown):
        registrar.confirm(grant)


def test_a_name_is_registered_once(registrar: Registrar) -> None:
    """A second registration would lock the first daemon out."""
    with pytest.raises(ValueError, match="already"):
        registrar.register("box")


def test_another_process_goes_on_with_the_secrets(registrar: Registrar) -> None:
    """From a file, before and after the proof."""
    early = Registrar.restored(msgspec.json.decode(msgspec.json.encode(registrar.secrets_of("box")), type=Secrets))
    assert early.admit(enrol()).psk == registrar.admit(enrol()).psk
    grant = registrar.admit(enrol())
    registrar.confirm(grant)
    late = Registrar.restored(msgspec.json.decode(msgspec.json.encode(registrar.secrets_of("box")), type=Secrets))
    assert late.key.public == registrar.key.public
    assert late.admit(resume()).psk == grant.resume
    with pytest.raises(Conflict):
        late.admit(resume(OTHER))


def test_secrets_are_not_shown(registrar: Registrar) -> None:
    """Neither of them in a log."""
    kept = registrar.secrets_of("box")
    assert repr(kept) == "<Secrets of box>"
    assert kept.private_key.hex()[:8] not in repr(registrar)


def test_environment_is_what_the_daemon_reads() -> None:
    """base64url without padding, 32 bytes each."""
    environment = Registrar().register("box").environment()
    assert set(environment) == {"SANDLOT_ENROL", "SANDLOT_KEY"}
    assert all(len(value) == 43 and "=" not in value for value in environment.values())


# --- reading claims -----------------------------------------------------------------------------------------------------
def test_a_claim_is_read_and_unknown_fields_are_ignored() -> None:
    """As everywhere in the contract."""
    payload = msgspec.msgpack.encode({"name": "box", "use": "enrol", "boot": FIRST, "later": [1]})
    assert Claim.read(payload) == enrol()


@pytest.mark.parametrize(
    "fields",
    [
        {"use": "enrol", "boot": FIRST},
        {"name": "", "use": "enrol", "boot": FIRST},
        {"name": "b" * 254, "use": "enrol", "boot": FIRST},
        {"name": "box", "use": "other", "boot": FIRST},
        {"name": "box", "use": "enrol", "boot": b"short"},
        {"name": "box", "use": "enrol", "boot": b"far too long"},
        {"name": b"box", "use": "enrol", "boot": FIRST},
        [],
    ],
)
def test_what_is_no_claim_is_a_breach(fields: object) -> None:
    """A missing field, a wrong type, a wrong length."""
    with pytest.raises(ProtocolViolation):
        Claim.read(msgspec.msgpack.encode(fields))


@given(st.binary(max_size=400))
def test_no_payload_is_anything_but_a_claim_or_a_breach(payload: bytes) -> None:
    """It comes from whoever knows the public key."""
    with suppress(ProtocolViolation):
        assert isinstance(Claim.read(payload), Claim)
