"""What a task is: an environment, a problem, an answer that is known, and the exact tests that decide."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sandlot.errors import BadRequest
from sandlot.spec import Spec

DEFAULT_TEST_LIMIT_S = 600.0
"""Seconds one run of a task's tests may take when its row does not say; large suites of public data sets need minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PytestRun:
    """Tests that pytest runs, reported by our own reporter through a private channel (docs/judging.md)."""

    python: str = "python"
    """The interpreter inside the sandbox: a path, or a name looked up in the image's PATH."""
    arguments: tuple[str, ...] = ()
    import_roots: tuple[str, ...] = (".",)
    """Directories, relative to the task's tree, that come first on the import path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedRun:
    """Any other command, whose *printed* report is parsed for exact test ids. Weaker: the code under test can print too."""

    script: str
    parser: str
    """A name of `sandlot.tasks.printed.PARSERS`, or of the parsers given to the judge."""


HowToRun = PytestRun | PrintedRun


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenTests:
    """Tests that the agent never sees: a unified diff, or a directory laid over the tree, or both (the directory first)."""

    patch: str = ""
    directory: Path | None = None
    removed: tuple[str, ...] = ()
    """Test files of the tree that the hidden tests do away with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task. Equal rows give equal tasks and equal `digest`s.

    The verdict is read from `fail_to_pass` (tests that the right change repairs) and `pass_to_pass` (tests that it must not
    break).
    """

    id: str
    spec: Spec
    problem: str
    tree: str = "/testbed"
    """Absolute path, inside the sandbox, of the task's own tree: where the agent works and what is judged."""
    gold_patch: str = ""
    hidden: HiddenTests = field(default_factory=HiddenTests)
    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...] = ()
    run: HowToRun = field(default_factory=PytestRun)
    agent_limit_s: float | None = None
    """Seconds an agent may take, or None for the rollout's own limit."""
    test_limit_s: float = DEFAULT_TEST_LIMIT_S
    origin: str = ""
    """File and line of the row, for messages."""

    def __post_init__(self) -> None:
        if not self.id or any(c in self.id for c in "/\0\n"):
            raise BadRequest(f"task id {self.id!r} must not be empty and must have no slash or line break")
        if not self.tree.startswith("/") or self.tree.rstrip("/") == "":
            raise BadRequest(f"the task's tree must be an absolute path below /, not {self.tree!r}")
        if not self.fail_to_pass:
            raise BadRequest("FAIL_TO_PASS is empty: nothing could tell a right change from none")
        both = set(self.fail_to_pass) & set(self.pass_to_pass)
        if both:
            raise BadRequest(f"{min(both)!r} is in FAIL_TO_PASS and in PASS_TO_PASS")
        if self.test_limit_s <= 0 or (self.agent_limit_s is not None and self.agent_limit_s <= 0):
            raise BadRequest("time limits must be positive seconds")

    @property
    def expected(self) -> tuple[str, ...]:
        """All test ids that decide, in a stable order."""
        return self.fail_to_pass + self.pass_to_pass

    @property
    def digest(self) -> str:
        """A hash of everything that could change a result; the place the row came from is not in it."""
        parts = (self.id, self.spec.key, self.problem, self.tree, self.gold_patch, self.hidden, self.fail_to_pass)
        parts2 = (self.pass_to_pass, self.run, self.agent_limit_s, self.test_limit_s)
        return hashlib.sha256(repr((parts, parts2)).encode()).hexdigest()


Outcome = Literal["passed", "failed", "error", "skipped", "xfailed", "xpassed"]


@dataclass(frozen=True, slots=True)
class Ending:
    """How one test ended: `error` is a failure outside the test's own body. `reason` is untrusted text, cut short."""

    outcome: Outcome
    reason: str = ""
    seconds: float = 0.0


Outcomes = Mapping[str, Ending]
