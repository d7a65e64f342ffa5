"""Directories laid over an image: environments that were frozen from an earlier sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.provider import Provider
from sandlot.spec import Spec


@pytest.fixture
def layers(tmp_path: Path) -> tuple[str, str]:
    """Two layers with something of their own and something in common, below / and below /usr."""
    for name in ("one", "two"):
        for folder in ("srv", "usr/local/lib/frozen"):
            (tmp_path / name / folder).mkdir(parents=True)
            (tmp_path / name / folder / name).write_text(f"{name}\n")
            (tmp_path / name / folder / "both").write_text(f"{name}\n")
    return str(tmp_path / "one"), str(tmp_path / "two")


SCRIPT = "cd {}; ls; cat both; echo changed > both"


@pytest.mark.parametrize("folder", ["/srv", "/usr/local/lib/frozen"])
async def test_layers_lie_over_the_machines_own_system(provider: Provider, layers: tuple[str, str], folder: str) -> None:
    """The last one wins, the system below is still there, and what is written goes to neither."""
    spec = Spec(image="host", layers=layers, limits="best-effort")
    for _ in range(2):
        async with await provider.create(spec) as box:
            result = await box.exec(SCRIPT.format(folder))
            assert result.stdout.split() == ["both", "one", "two", "two"], result.stderr
            assert (await box.exec("test -x /usr/bin/env && test -d /etc")).ok
    assert (Path(layers[1]) / folder[1:] / "both").read_text() == "two\n"


async def test_layers_lie_over_a_directory(provider: Provider, layers: tuple[str, str], tmp_path: Path) -> None:
    """The same for an image that is a directory."""
    base = tmp_path / "base"
    (base / "srv").mkdir(parents=True)
    (base / "srv" / "base").write_text("base\n")
    spec = Spec(image=f"dir:{base}", layers=layers, limits="best-effort")
    async with await provider.create(spec) as box:
        assert await box.read("/srv/both") == b"two\n"
        assert await box.read("/srv/base") == b"base\n"
