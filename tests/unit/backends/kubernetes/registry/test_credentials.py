"""What container tools have stored."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandlot.backends.kubernetes.registry.credentials import Credentials, find_credentials
from sandlot.errors import BadRequest

Write = Callable[[dict[str, Any]], dict[str, str]]
AUTH = base64.b64encode(b"me:se:cret").decode()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a config.json and gives the environment in which it is found."""

    def written(content: dict[str, Any]) -> dict[str, str]:
        (tmp_path / "config.json").write_text(json.dumps(content))
        return {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path / "nowhere")}

    return written


def helper(folder: Path, name: str, script: str) -> None:
    program = folder / f"docker-credential-{name}"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_nothing_stored_is_none(write: Write, tmp_path: Path) -> None:
    """No file at all, and a file about other registries."""
    assert find_credentials("a.b", {"HOME": str(tmp_path)}) is None
    assert find_credentials("a.b", write({"auths": {"c.d": {"auth": AUTH}}})) is None


@pytest.mark.parametrize("key", ["a.b:5000", "https://a.b:5000", "http://a.b:5000"])
def test_a_stored_password_is_found(write: Write, key: str) -> None:
    """By each form that tools write; a password may hold colons."""
    found = find_credentials("a.b:5000", write({"auths": {key: {"auth": AUTH}}}))
    assert found == Credentials("me", "se:cret")
    assert found is not None
    assert found.basic == f"Basic {AUTH}"


def test_a_secret_is_never_shown(write: Write) -> None:
    """Not in a traceback or a log either."""
    assert "se:cret" not in repr(find_credentials("a.b", write({"auths": {"a.b": {"auth": AUTH}}})))


def test_a_helper_is_asked_on_its_standard_input(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one named for this registry, before the one for all."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    helper(tmp_path, "one", 'read key; printf \'{"Username":"u-%s","Secret":"s"}\' "$key"')
    environ = write({"credHelpers": {"a.b": "one"}, "credsStore": "missing"})
    assert find_credentials("a.b", environ) == Credentials("u-a.b", "s")


def test_a_helper_may_give_an_identity_token(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As clouds do it: the user's name says so."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    helper(tmp_path, "two", 'echo \'{"Username":"<token>","Secret":"t"}\'')
    assert find_credentials("a.b", write({"credsStore": "two"})) == Credentials(identity_token="t")


def test_a_helper_that_knows_nothing_is_none_and_one_that_fails_is_said(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The protocol has one sentence for the first."""
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    helper(tmp_path, "three", 'echo "credentials not found in native keychain"; exit 1')
    helper(tmp_path, "four", 'echo "keychain locked" >&2; exit 1')
    assert find_credentials("a.b", write({"credsStore": "three"})) is None
    with pytest.raises(BadRequest, match="keychain locked"):
        find_credentials("a.b", write({"credsStore": "four"}))
    with pytest.raises(BadRequest, match="docker-credential-five"):
        find_credentials("a.b", write({"credsStore": "five"}))


def test_a_broken_file_is_named(write: Write, tmp_path: Path) -> None:
    """Rather than a push that is refused for no visible reason."""
    with pytest.raises(BadRequest, match=r"config\.json"):
        find_credentials("a.b", write({"auths": 3}))
    with pytest.raises(BadRequest, match=r"a\.b"):
        find_credentials("a.b", write({"auths": {"a.b": {"auth": "%%%"}}}))
