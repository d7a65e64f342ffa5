"""What a person's container tools have stored for a registry: the configuration file of `docker login` and its helpers.

Format: `auths`, `credHelpers` and `credsStore` of Docker's config.json; podman's auth.json has the same `auths`.
"""

from __future__ import annotations

import base64
import binascii
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from sandlot.errors import BadRequest

_HELPER_S: Final = 30.0  # helpers of clouds ask a service of theirs
_TOKEN_USER: Final = "<token>"  # how a helper says that the secret is an identity token


@dataclass(frozen=True, slots=True)
class Credentials:
    """A user's name and secret, or an identity token in place of both. Never shown."""

    username: str = ""
    secret: str = ""
    identity_token: str = ""

    def __repr__(self) -> str:
        return f"Credentials({self.username!r}, ...)"

    @property
    def basic(self) -> str:
        """The value of an `Authorization` header."""
        return "Basic " + base64.b64encode(f"{self.username}:{self.secret}".encode()).decode()


class _Entry(msgspec.Struct, frozen=True):
    auth: str = ""
    username: str = ""
    password: str = ""
    identitytoken: str = ""


class _File(msgspec.Struct, frozen=True, rename="camel"):
    auths: dict[str, _Entry] = {}
    cred_helpers: dict[str, str] = {}
    creds_store: str = ""


class _Answer(msgspec.Struct, frozen=True, rename="pascal"):
    username: str = ""
    secret: str = ""


def find_credentials(host: str, environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """What is stored for a registry, or None. Runs a credential helper when the file names one: call it in a thread.

    Raises:
        BadRequest: a file that cannot be read, or a helper that fails.
    """
    for path in _files(environ):
        try:
            raw = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise BadRequest(f"{path} cannot be read: {error.strerror}") from error
        try:
            file = msgspec.json.decode(raw, type=_File)
        except msgspec.MsgspecError as error:
            raise BadRequest(f"{path} is no configuration of container tools: {error}") from error
        found = _from_file(file, host, path)
        if found is not None:
            return found
    return None


def _files(environ: Mapping[str, str]) -> list[Path]:
    home = Path(environ.get("HOME", "/"))
    named = environ.get("REGISTRY_AUTH_FILE")
    runtime = environ.get("XDG_RUNTIME_DIR")
    return [
        *([Path(named)] if named else []),
        Path(environ.get("DOCKER_CONFIG") or home / ".docker") / "config.json",
        *([Path(runtime) / "containers" / "auth.json"] if runtime else []),
        home / ".config" / "containers" / "auth.json",
    ]


def _from_file(file: _File, host: str, path: Path) -> Credentials | None:
    keys = (host, f"https://{host}", f"http://{host}")
    for key in keys:
        if key in file.cred_helpers:
            return _ask_helper(file.cred_helpers[key], key)
    for key in keys:
        entry = file.auths.get(key)
        if entry is not None and (entry.auth or entry.username or entry.identitytoken):
            return _from_entry(entry, path, key)
    return _ask_helper(file.creds_store, host) if file.creds_store else None


def _from_entry(entry: _Entry, path: Path, key: str) -> Credentials:
    username, secret = entry.username, entry.password
    if entry.auth:
        try:
            username, _, secret = base64.b64decode(entry.auth, validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError) as error:
            raise BadRequest(f"{path}: what is stored for {key} cannot be decoded", hint="log in to it again") from error
    return Credentials(username, secret, entry.identitytoken)


def _ask_helper(name: str, key: str) -> Credentials | None:
    """`docker-credential-NAME get`: the key on standard input, JSON on standard output."""
    program = f"docker-credential-{name}"
    try:
        done = subprocess.run([program, "get"], input=key.encode(), capture_output=True, timeout=_HELPER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BadRequest(f"the credential helper {program} failed for {key}: {error}") from error
    if done.returncode != 0:
        if b"credentials not found" in done.stdout + done.stderr:
            return None
        said = (done.stdout + done.stderr).decode("utf-8", "replace").strip()[:200]
        raise BadRequest(f"the credential helper {program} failed for {key}: {said}")
    try:
        answer = msgspec.json.decode(done.stdout, type=_Answer)
    except msgspec.MsgspecError as error:
        raise BadRequest(f"the credential helper {program} gave no answer that can be read for {key}") from error
    if answer.username == _TOKEN_USER:
        return Credentials(identity_token=answer.secret)
    return Credentials(answer.username, answer.secret)
