"""What the README shows is what happens."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_the_example_prints_what_the_readme_says(tmp_path: Path) -> None:
    """Run as a program of its own, from another directory."""
    (program,), (expected,) = blocks("python"), blocks("text")
    path = tmp_path / "example.py"
    path.write_text(program)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False, cwd=tmp_path, timeout=100)
    assert (done.returncode, done.stdout) == (0, expected), done.stderr


def test_every_verb_of_the_table_exists() -> None:
    """And the table leaves none out."""
    from sandlot.cli.main import VERBS

    table = re.findall(r"^\| `sandlot (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert sorted(set(table)) == sorted(VERBS)


def test_links_lead_somewhere() -> None:
    """Every relative link of the documents names a file or folder of the tree."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
