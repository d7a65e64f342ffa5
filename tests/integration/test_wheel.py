"""The wheel, installed where nothing else is."""

from __future__ import annotations

import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow
def test_the_wheel_is_for_this_kind_of_machine_and_holds_the_daemon(wheel: Path) -> None:
    """Any Python and any C library, one processor family; the daemon can be executed; nothing else of the tree is in it."""
    assert "-py3-none-manylinux" in wheel.name
    assert "musllinux" in wheel.name
    with zipfile.ZipFile(wheel) as packed:
        mode = packed.getinfo("sandlot/_bin/sandlotd").external_attr >> 16
        tops = {name.partition("/")[0] for name in packed.namelist()}
        binary = packed.read("sandlot/_bin/sandlotd")
    assert stat.S_IMODE(mode) == 0o755
    assert {top.partition("-")[0] for top in tops} == {"sandlot"}
    assert len(binary) <= 3 * 2**20


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_installed_wheel_works_away_from_the_source_tree(
    wheel: Path, tmp_path: Path, clean_environ: dict[str, str]
) -> None:
    """An empty virtual environment, another directory, nothing inherited: a sandbox runs a command."""
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    subprocess.run([venv / "bin/pip", "install", "-q", str(wheel)], check=True, cwd=tmp_path)
    command = [str(venv / "bin/sandlot"), "exec", "--best-effort", "host", "--", "echo", "works"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", env=clean_environ)
    assert (done.returncode, done.stdout) == (0, "works\n"), done.stderr
    where = subprocess.run(
        [venv / "bin/python", "-c", "import sandlot; print(sandlot.__file__)"],
        capture_output=True, text=True, check=True, cwd="/", env=clean_environ,
    )  # fmt: skip
    assert where.stdout.startswith(str(venv))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_source_distribution_holds_what_a_wheel_is_made_of(tmp_path: Path) -> None:
    """The daemon's sources, the contract and its vectors, and no build results."""
    command = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (built,) = tmp_path.glob("*.tar.gz")
    names = subprocess.run(["tar", "tzf", built], check=True, capture_output=True, text=True).stdout.splitlines()
    inside = {name.partition("/")[2] for name in names}
    for needed in (
        "daemon/Cargo.lock",
        "daemon/src/main.rs",
        "daemon/.cargo/config.toml",
        "wire/contract.md",
        "hatch_build.py",
    ):
        assert needed in inside
    assert not [name for name in inside if name.startswith(("daemon/target", "src/sandlot/_bin"))]
