"""Who may link, and with which secret: one record a sandbox. Pure: no socket, no clock.

A sandbox's daemon gets one secret with its pod, good for one enrolment. Whoever may read pods can read it there, so it says
little by itself: it is burned by the first link that proves to hold it, and belongs from then on to one daemon process, told
by eight random bytes of its own (its *boot*). Every later link uses a secret that was only ever sent sealed.
"""

from __future__ import annotations

import base64
import hmac
import secrets
from dataclasses import dataclass
from typing import Annotated, Final, Literal

import msgspec

from sandlot.connection.noise import KEY_BYTES, StaticKey
from sandlot.errors import ProtocolViolation

BOOT_BYTES: Final = 8
MAX_NAME_BYTES: Final = 253  # of an object of the API server


class Claim(msgspec.Struct, frozen=True):
    """What a daemon says in its first message: nothing of it is proved yet."""

    name: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME_BYTES)]
    use: Literal["enrol", "resume"]
    boot: bytes

    @classmethod
    def read(cls, payload: bytes) -> Claim:
        """Raises `ProtocolViolation` when it is no claim."""
        try:
            claim = _claims.decode(payload)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolViolation(f"a link's first message that is no claim: {error}") from None
        if len(claim.boot) != BOOT_BYTES:
            raise ProtocolViolation(f"a boot of {len(claim.boot)} bytes; it has {BOOT_BYTES}")
        return claim


_claims = msgspec.msgpack.Decoder(Claim)


class Granted(msgspec.Struct, frozen=True):
    """What the provider answers, sealed to who holds the secret."""

    resume: bytes


class Refused(Exception):
    """A claim that is not granted. The link is closed without an answer."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(why)
        self.name = name


class Unknown(Refused):
    """There is no such sandbox here, or no more."""


class Stale(Refused):
    """This daemon has a newer secret, or this link is an older try of it. It tries the ones it has in turn."""


class Conflict(Refused):
    """Another process claims the name: either it or the first one came by a secret that is not its own."""


@dataclass(frozen=True, slots=True)
class Enrolment:
    """What a sandbox's daemon is started with."""

    secret: bytes
    public_key: bytes

    def environment(self) -> dict[str, str]:
        """As the daemon reads it."""
        return {"SANDLOT_ENROL": _text(self.secret), "SANDLOT_KEY": _text(self.public_key)}


@dataclass(frozen=True, slots=True)
class Grant:
    """How to go on with a claim."""

    claim: Claim
    psk: bytes
    resume: bytes
    """What the daemon may use from now on, once it has proved its claim."""


class Secrets(msgspec.Struct, frozen=True):
    """All of one sandbox's record, for a file that nobody else may read: who has it is the sandbox's provider."""

    name: str
    private_key: bytes
    enrol: bytes | None
    resume: bytes | None
    boot: bytes | None

    def __repr__(self) -> str:
        return f"<Secrets of {self.name}>"


class _Record:
    """Either the enrolment secret, or a boot with its resume secret."""

    __slots__ = ("boot", "enrol", "resume")

    def __init__(self, enrol: bytes | None, resume: bytes | None = None, boot: bytes | None = None) -> None:
        self.enrol, self.resume, self.boot = enrol, resume, boot


class Registrar:
    """The records of one static key. Names are sandbox names, chosen by the provider."""

    def __init__(self, key: StaticKey | None = None) -> None:
        self.key = key or StaticKey.generate()
        self._records: dict[str, _Record] = {}

    def __repr__(self) -> str:
        return f"<Registrar {self.key.public.hex()[:16]}, {len(self._records)} sandboxes>"

    def __contains__(self, name: str) -> bool:
        return name in self._records

    def register(self, name: str) -> Enrolment:
        """A new secret for a sandbox that is about to be made. Once a name, before anybody else hears of it."""
        if name in self._records:
            raise ValueError(f"{name} is registered already")
        enrol = secrets.token_bytes(KEY_BYTES)
        self._records[name] = _Record(enrol)
        return Enrolment(enrol, self.key.public)

    def forget(self, name: str) -> None:
        """No link of that name any more. Idempotent."""
        self._records.pop(name, None)

    def admit(self, claim: Claim) -> Grant:
        """The secret that this claim has to prove. Changes nothing: whoever knows a name can make a claim.

        Raises:
            Unknown, Stale, Conflict: see there.
        """
        record = self._record(claim.name)
        if record.boot is not None:
            _check_boot(record.boot, claim)
        if claim.use == "enrol":
            if record.enrol is None:
                raise Stale(claim.name, f"{claim.name} has enrolled already")
            return Grant(claim, record.enrol, secrets.token_bytes(KEY_BYTES))
        if record.resume is None:
            raise Stale(claim.name, f"{claim.name} would resume a link, and has never proved one")
        return Grant(claim, record.resume, record.resume)

    def confirm(self, grant: Grant) -> None:
        """The link has proved its claim: burn the enrolment secret. The name belongs to that boot from now on.

        Raises:
            Unknown: the sandbox was forgotten meanwhile.
            Stale: another link of this daemon has enrolled meanwhile, so that the secret of this one is not the valid one.
            Conflict: another boot has enrolled meanwhile.
        """
        claim = grant.claim
        record = self._record(claim.name)
        if record.boot is not None:
            _check_boot(record.boot, claim)
            if claim.use == "enrol":
                raise Stale(claim.name, f"{claim.name} has enrolled on another link")
        record.boot, record.resume, record.enrol = claim.boot, grant.resume, None

    # --- across processes ----------------------------------------------------------------------------------------------
    def secrets_of(self, name: str) -> Secrets:
        """What another process needs to link to the sandbox. Raises `Unknown`."""
        record = self._record(name)
        return Secrets(name, self.key.private, record.enrol, record.resume, record.boot)

    @classmethod
    def restored(cls, kept: Secrets) -> Registrar:
        """A registrar that knows one sandbox, of another process's."""
        registrar = cls(StaticKey.from_private(kept.private_key))
        registrar._records[kept.name] = _Record(kept.enrol, kept.resume, kept.boot)
        return registrar

    # --- inside ----------------------------------------------------------------------------------------------------------
    def _record(self, name: str) -> _Record:
        try:
            return self._records[name]
        except KeyError:
            raise Unknown(name, f"there is no sandbox named {name[:64]!r} here") from None


def _check_boot(bound: bytes, claim: Claim) -> None:
    if not hmac.compare_digest(bound, claim.boot):
        raise Conflict(claim.name, f"a second process claims to be the daemon of {claim.name}")


def _text(key: bytes) -> str:
    """base64url without padding."""
    return base64.urlsafe_b64encode(key).rstrip(b"=").decode()
