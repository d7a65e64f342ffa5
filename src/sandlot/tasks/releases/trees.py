"""Two unpacked releases on disk -> gold patch, hidden tests, problem statement. Reads text; runs nothing."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from sandlot.tasks.patch import changed_lines, diff_trees, parse_patch
from sandlot.tasks.releases.recipe import Recipe, Unsuitable

MIN_CHANGED_LINES: Final = 20
STATEMENT_CHARS: Final = 8_000
_GENERATED: Final = (".pyc", ".pyo", ".so", ".mo", ".egg-info", ".dist-info")
_NEWS: Final = re.compile(r"^(changes|changelog|history|news|release[-_ ]?notes)\b.*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where things are in both releases, relative to their tops."""

    sources: tuple[str, ...]
    tests: tuple[str, ...]
    import_roots: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Difference:
    """What the newer release changed."""

    patch: str
    removed_tests: tuple[str, ...]
    statement: str


def find_layout(recipe: Recipe, old: Path, new: Path) -> Layout:
    """As the recipe says, and where it says nothing as the trees show.

    Raises:
        Unsuitable: no tests or no packages are found, or a path of the recipe is in neither tree.
    """
    tests = recipe.test_paths or _find_tests(new)
    roots = recipe.import_roots or (("src",) if _packages(new / "src") else (".",))
    sources = recipe.source_paths or tuple(
        str(PurePosixPath(root, name)) for root in roots for name in sorted(_packages(new / root) | _packages(old / root))
    )
    sources = tuple(path for path in sources if path not in tests)
    for path in (*sources, *tests):
        if not (old / path).exists() and not (new / path).exists():
            raise Unsuitable(f"{path} is in neither release", hint="correct the paths in the list")
    if not sources:
        raise Unsuitable("no package was found in the releases", hint="name its paths in a list: source_paths")
    return Layout(sources, tests, roots)


def compare(recipe: Recipe, layout: Layout, old: Path, new: Path) -> Difference:
    """The newer release's change to the sources, and which test files it did away with.

    Raises:
        Unsuitable: fewer than `MIN_CHANGED_LINES` lines of source changed.
    """
    before, after = (_texts(top, layout.sources, layout.tests) for top in (old, new))
    patch = diff_trees(before, after)
    lines = changed_lines(parse_patch(patch))
    if lines < MIN_CHANGED_LINES:
        raise Unsuitable(f"only {lines} lines of source changed, fewer than {MIN_CHANGED_LINES}")
    gone = set(_files(old, layout.tests)) - set(_files(new, layout.tests))
    return Difference(patch, tuple(sorted(gone)), _statement(recipe, old, new))


def copy_tests(layout: Layout, new: Path, target: Path) -> None:
    """The newer release's test files, as a directory to lay over the tree. Links that lead out of it are left out."""
    for path in _files(new, layout.tests):
        source = new / path
        if source.is_symlink() and not source.resolve().is_relative_to(new.resolve()):
            continue
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / path, follow_symlinks=False)


def _find_tests(top: Path) -> tuple[str, ...]:
    for name in ("tests", "test", "testing"):
        if (top / name).is_dir():
            return (name,)
    files = tuple(sorted(path.name for path in top.glob("test_*.py")))
    if not files:
        raise Unsuitable("the newer release brings no tests", hint="name them in a list: test_paths")
    return files


def _packages(top: Path) -> set[str]:
    """Importable things right below `top`, tests and set-up files left out."""
    if not top.is_dir():
        return set()
    skip = {
        "tests",
        "test",
        "testing",
        "docs",
        "doc",
        "examples",
        "benchmarks",
        "setup.py",
        "conftest.py",
        "noxfile.py",
        "tasks.py",
    }
    packages = {path.parent.name for path in top.glob("*/__init__.py")}
    modules = {path.name for path in top.glob("*.py") if not path.name.startswith("test_")}
    return (packages | modules) - skip


def _files(top: Path, paths: Iterable[str]) -> list[str]:
    """Every file below these paths, relative to the top; what is generated is left out."""
    found: list[str] = []
    for path in paths:
        root = top / path
        if root.is_file():
            found.append(path)
        for folder, folders, names in os.walk(root):
            folders[:] = sorted(name for name in folders if name != "__pycache__" and not name.endswith(_GENERATED))
            found += [str((Path(folder) / name).relative_to(top)) for name in sorted(names) if not name.endswith(_GENERATED)]
    return found


def _texts(top: Path, sources: Iterable[str], tests: tuple[str, ...]) -> dict[str, bytes]:
    """Source files that a patch can carry: regular, UTF-8, and not tests that live among the sources."""
    found = {}
    for path in _files(top, sources):
        if (top / path).is_symlink() or any(PurePosixPath(path).is_relative_to(test) for test in tests):
            continue
        content = (top / path).read_bytes()
        try:
            content.decode()
        except UnicodeDecodeError:
            continue
        found[path] = content
    return found


def _statement(recipe: Recipe, old: Path, new: Path) -> str:
    """What the newer release's notes say beyond the older one's, after one sentence of ours."""
    head = (
        f"This is {recipe.project} {recipe.old}. Change it so that it does what release {recipe.new} does. "
        "Tests of that release decide; the version number does not matter.\n"
    )
    news: list[str] = []
    for path in sorted(new.iterdir()):
        if _NEWS.match(path.name) and path.is_file() and not path.is_symlink():
            known = set(_lines(old / path.name))
            news += [line for line in _lines(path) if line not in known]
    text = "\n".join(news).strip()
    return f"{head}\nFrom its release notes:\n\n{text[:STATEMENT_CHARS]}\n" if text else head


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
