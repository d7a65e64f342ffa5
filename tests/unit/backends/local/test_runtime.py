"""The directories of hosts, and which of them live."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from sandlot.backends.local.runtime import cache_dir, check_private, hosts, runtime_dir
from sandlot.errors import Unsupported


def test_the_runtime_directory_depends_on_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Root's is the system's; others have it in their session's directory, else in /tmp by their id; a variable wins."""
    assert runtime_dir({"SANDLOT_RUNTIME_DIR": str(tmp_path)}) == tmp_path
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert runtime_dir({"XDG_RUNTIME_DIR": "/run/user/1"}) == Path("/run/sandlot")
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000_001)
    assert runtime_dir({"XDG_RUNTIME_DIR": "/run/user/1"}) == Path("/run/user/1/sandlot")
    assert runtime_dir({}) == Path("/tmp/sandlot-4000000001")


def test_a_directory_that_is_not_ours_alone_is_refused(tmp_path: Path) -> None:
    """Its name can be guessed: a link or an open directory may be somebody's trap."""
    check_private(tmp_path / "missing")
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    check_private(own)
    (tmp_path / "link").symlink_to(own)
    with pytest.raises(Unsupported, match="not a directory of this user alone"):
        check_private(tmp_path / "link")
    own.chmod(0o777)
    with pytest.raises(Unsupported, match="chmod 700"):
        check_private(own)


def test_a_directory_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever made it first would own our sockets."""
    own = tmp_path / "own"
    own.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(Unsupported):
        check_private(own)


def test_the_cache_lies_where_the_variables_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ours first, then the desktop's, then the home directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir({"SANDLOT_CACHE": "/c", "XDG_CACHE_HOME": "/x"}) == Path("/c")
    assert cache_dir({"XDG_CACHE_HOME": "/x"}) == Path("/x/sandlot")
    assert cache_dir({}) == tmp_path / ".cache" / "sandlot"


def test_a_host_lives_as_long_as_its_state_is_locked(tmp_path: Path) -> None:
    """Directories without a state are no hosts; neither is a link that leads elsewhere."""
    assert hosts(tmp_path / "missing") == []
    for name in ("alive", "dead"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "state").touch()
    (tmp_path / "ids").mkdir()
    (tmp_path / "odd").mkdir()
    (tmp_path / "odd" / "state").symlink_to(tmp_path / "dead" / "state")
    with open(tmp_path / "alive" / "state") as state:
        fcntl.flock(state, fcntl.LOCK_EX)
        assert [(host.id, host.alive) for host in hosts(tmp_path)] == [("alive", True), ("dead", False)]
    assert [(host.id, host.alive) for host in hosts(tmp_path)] == [("alive", False), ("dead", False)]


def test_looking_does_not_hold_a_lock(tmp_path: Path) -> None:
    """A host that starts at that moment must not find its own state locked."""
    (tmp_path / "h").mkdir()
    (tmp_path / "h" / "state").touch()
    hosts(tmp_path)
    with open(tmp_path / "h" / "state") as state:
        fcntl.flock(state, fcntl.LOCK_EX | fcntl.LOCK_NB)
