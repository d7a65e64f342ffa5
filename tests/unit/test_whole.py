"""`tests.whole`: what is skipped on any machine, and what fails on one that should be whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILE = """
import pytest

@pytest.fixture
def part():
    pytest.skip("no part")

def test_without_its_part(part): pass

@pytest.mark.skipif(True, reason="no tool")
def test_without_its_tool(): pass

@pytest.mark.may_lack
@pytest.mark.skipif(True, reason="another kernel")
def test_of_another_kernel(): pass

@pytest.mark.xfail
def test_that_differs(): assert False
"""


@pytest.mark.parametrize(("ci", "summary"), [("", "3 skipped, 1 xfailed"), ("true", "1 skipped, 1 xfailed, 2 errors")])
def test_only_what_may_lack_is_skipped_on_a_whole_machine(tmp_path: Path, ci: str, summary: str) -> None:
    """With the reason in both cases; what is expected to fail is no skip."""
    ended = _pytest(tmp_path, FILE, ci)
    assert summary in ended.stdout
    assert "no part" in ended.stdout
    assert "no tool" in ended.stdout
    assert ended.returncode == (1 if ci else 0)


def test_a_whole_file_cannot_be_skipped_either(tmp_path: Path) -> None:
    """As `importorskip` does."""
    text = "import pytest\npytest.skip('no library', allow_module_level=True)\n"
    assert _pytest(tmp_path, text, "").returncode == 5  # nothing was run
    ended = _pytest(tmp_path, text, "true")
    assert "no library" in ended.stdout
    assert ended.returncode == 2


def _pytest(folder: Path, text: str, ci: str) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(text)
    (folder / "pytest.ini").write_text("[pytest]\nmarkers = may_lack\n")
    environment = os.environ | {"CI": ci, "PYTHONPATH": str(ROOT), "PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    words = [
        sys.executable,
        "-m",
        "pytest",
        "-ra",
        "-p",
        "tests.whole",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        ".",
    ]
    return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
