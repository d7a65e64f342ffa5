"""Files by which another process comes by a leased sandbox."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from sandlot.backends.kubernetes.links.keeping import Keepsake, kept, state_dir
from sandlot.backends.kubernetes.links.registrar import Claim, Registrar, Secrets
from sandlot.errors import BadRequest, Closed, SandboxGone, Unsupported, WriteFailed


@pytest.fixture
def secrets() -> Secrets:
    registrar = Registrar()
    registrar.register("box")
    return registrar.secrets_of("box")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return state_dir("https://198.18.0.1:6443", {"XDG_STATE_HOME": str(tmp_path)})


def test_another_process_finds_the_secrets(folder: Path, secrets: Secrets) -> None:
    """When the first has ended; they make the same registrar."""
    Keepsake.create(folder, secrets).close()
    keepsake, found = Keepsake.take(folder, "box")
    assert found == secrets
    assert kept(folder) == ["box"]
    claim = Claim(name="box", use="enrol", boot=bytes(8))
    assert Registrar.restored(found).admit(claim).psk == secrets.enrol
    keepsake.close()


def test_file_and_directory_are_for_their_user_alone(folder: Path, secrets: Secrets) -> None:
    """Whatever the umask."""
    before = os.umask(0)
    try:
        Keepsake.create(folder, secrets).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((folder / "box").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_one_process_at_a_time(folder: Path, secrets: Secrets) -> None:
    """The second is told; when the first is done it has its turn."""
    first = Keepsake.create(folder, secrets)
    with pytest.raises(Closed):
        Keepsake.take(folder, "box")
    first.close()
    second, _ = Keepsake.take(folder, "box")
    with pytest.raises(Closed):
        Keepsake.take(folder, "box")
    second.close()


def test_what_is_written_later_replaces_what_was_there(folder: Path, secrets: Secrets) -> None:
    """Shorter or longer."""
    keepsake = Keepsake.create(folder, secrets)
    burned = Secrets("box", secrets.private_key, None, b"r" * 32, b"bootboot")
    for one in (burned, secrets, burned):
        keepsake.write(one)
    keepsake.close()
    again, found = Keepsake.take(folder, "box")
    assert found == burned
    again.close()


def test_the_file_ends_with_its_sandbox(folder: Path, secrets: Secrets) -> None:
    """Then there is nothing to take; closing and removing again is no fault."""
    keepsake = Keepsake.create(folder, secrets)
    keepsake.remove()
    keepsake.remove()
    keepsake.close()
    assert kept(folder) == []
    with pytest.raises(SandboxGone):
        Keepsake.take(folder, "box")
    with pytest.raises(Closed):
        keepsake.write(secrets)


def test_a_name_is_given_once(folder: Path, secrets: Secrets) -> None:
    """A second sandbox of that name would lose the first."""
    keepsake = Keepsake.create(folder, secrets)
    with pytest.raises(WriteFailed):
        Keepsake.create(folder, secrets)
    assert kept(folder) == ["box"]
    keepsake.close()


def test_a_file_that_others_may_read_is_not_used(folder: Path, secrets: Secrets) -> None:
    """Its secrets may be known."""
    Keepsake.create(folder, secrets).close()
    (folder / "box").chmod(0o644)
    with pytest.raises(Unsupported):
        Keepsake.take(folder, "box")


def test_a_directory_that_others_may_write_to_is_not_used(folder: Path, secrets: Secrets) -> None:
    """Somebody else could put files there."""
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    with pytest.raises(Unsupported):
        Keepsake.create(folder, secrets)


def test_a_link_in_the_files_place_is_not_followed(folder: Path, secrets: Secrets) -> None:
    """Neither for writing nor for reading."""
    folder.mkdir(parents=True, mode=0o700)
    (folder / "box").symlink_to(folder / "elsewhere")
    with pytest.raises(WriteFailed):
        Keepsake.create(folder, secrets)
    with pytest.raises(Unsupported):
        Keepsake.take(folder, "box")
    assert not (folder / "elsewhere").exists()


@pytest.mark.parametrize("text", ["", "{", '{"name": "box"}', "[]", "\x00" * 100])
def test_a_file_that_is_none_of_ours_is_told(folder: Path, secrets: Secrets, text: str) -> None:
    """And is let go."""
    Keepsake.create(folder, secrets).close()
    (folder / "box").write_text(text)
    for _ in range(2):
        with pytest.raises(Unsupported):
            Keepsake.take(folder, "box")


@pytest.mark.parametrize("name", ["", "..", "../box", "a/b", "Box", ".box", "b" * 254])
def test_only_names_of_sandboxes_are_file_names(folder: Path, name: str) -> None:
    """Nothing outside of the directory is reached."""
    with pytest.raises(BadRequest):
        Keepsake.take(folder, name)


def test_clusters_have_directories_of_their_own(tmp_path: Path) -> None:
    """Below XDG_STATE_HOME, whatever their addresses look like; never above."""
    environ = {"XDG_STATE_HOME": str(tmp_path)}
    folders = {state_dir(cluster, environ) for cluster in ("https://one:6443", "https://two:6443", "../..")}
    assert len(folders) == 3
    assert all(tmp_path / "sandlot" / "kubernetes" in (one, *one.parents) for one in folders)
    assert state_dir("one", {}) == Path.home() / ".local" / "state" / "sandlot" / "kubernetes" / "one"
