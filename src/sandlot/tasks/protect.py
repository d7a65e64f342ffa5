"""What of an agent's change may reach the judge. Pure: paths in, decisions out.

An agent may edit its own tree, and the tests are run by an interpreter that reads that tree. So everything through which the
tree could steer the *runner* instead of the code under test is taken from the task's side, never from the agent's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

RUNNER_FILES: Final = frozenset(
    (
        *("conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", ".pytest.toml", "tox.ini", "setup.cfg", "pyproject.toml"),
        *("noxfile.py", "sitecustomize.py", "usercustomize.py"),
    )
)
"""File names that a test runner or an interpreter obeys, at any depth."""

RUNNER_MODULES: Final = frozenset(
    ("pytest", "_pytest", "pluggy", "iniconfig", "py", "xdist", "pytest_asyncio", "anyio", "hypothesis")
)
"""Top-level modules of the runner: one of these in the tree would be imported instead of it."""

TEST_DIRECTORIES: Final = frozenset(("test", "tests"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The rules for one task; make it by `guard_for`. All paths are relative to the task's tree."""

    hidden: frozenset[str]
    """Files that the hidden tests make, change or remove."""
    gold: frozenset[str]
    """Files that the known right change touches."""
    import_roots: tuple[PurePosixPath, ...]
    present: frozenset[str]
    """What stands directly below the import roots of the clean tree."""
    above_hidden: frozenset[str]
    test_directories: frozenset[str]

    def reason(self, path: str) -> str | None:
        """Why the agent's change to `path` is left out, or None when it counts."""
        pure = PurePosixPath(path)
        if pure.name in RUNNER_FILES or pure.suffix == ".pth":
            return "runner configuration"
        if path in self.hidden or not self.hidden.isdisjoint(map(str, pure.parents)):
            return "hidden test"
        if "__pycache__" in pure.parts or pure.suffix in (".pyc", ".pyo"):
            return "compiled code"
        if any(part.endswith((".dist-info", ".egg-info", ".egg-link")) for part in pure.parts):
            return "package metadata, which can load plugins"
        if ".git" in pure.parts:
            return "version control"
        if path in self.gold:
            return None
        if any(pure.is_relative_to(directory) for directory in self.test_directories):
            return "beside the hidden tests"
        if any(self._shadows(pure, root) for root in self.import_roots):
            return "stands in for a module of the interpreter or the runner"
        return None

    def replaces_directory(self, path: str) -> bool:
        """Whether hidden tests lie below `path`: the agent may change files in it, but not the directory itself."""
        return path in self.above_hidden

    @property
    def from_gold(self) -> frozenset[str]:
        """Runner files that the right change itself touches: taken from it, since the agent's are left out."""
        return frozenset(path for path in self.gold if PurePosixPath(path).name in RUNNER_FILES)

    def _shadows(self, path: PurePosixPath, root: PurePosixPath) -> bool:
        if not path.is_relative_to(root) or path == root:
            return False
        first = path.relative_to(root).parts[0]
        if str(root / first) in self.present:
            return False
        module = first.split(".", 1)[0]  # also of extension modules: json.cpython-311-x86_64-linux-gnu.so
        return module in RUNNER_MODULES or module in sys.stdlib_module_names


def guard_for(
    *, hidden: Iterable[str], gold: Iterable[str], import_roots: Iterable[str] = (".",), present: Iterable[str] = ()
) -> Guard:
    """The rules for a task whose hidden tests and gold patch touch these files; `present` as in `Guard`."""
    hidden = frozenset(hidden)
    above = frozenset(str(parent) for path in hidden for parent in PurePosixPath(path).parents) - {"."}
    return Guard(
        hidden=hidden,
        gold=frozenset(gold),
        import_roots=tuple(PurePosixPath(root) for root in import_roots),
        present=frozenset(present),
        above_hidden=above,
        test_directories=frozenset(path for path in above if PurePosixPath(path).name in TEST_DIRECTORIES),
    )
