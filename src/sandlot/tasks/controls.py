"""Tests whose outcome is known beforehand, so that a run in which "everything passes" gives itself away. Pure, but for the
dice.

Two kinds. `control_file` is a module of small tests with random names, some of which must fail: it runs beside the real tests.
`poison` puts a failing assertion at the head of the very tests that decide, under their own names: that run, in another clean
sandbox, must show none of them as passed. Code that reports a test as passed whatever it does cannot tell the two runs apart by
any name, path or order; only by reading the source of the tests themselves (docs/judging.md says what that leaves open).
"""

from __future__ import annotations

import ast
import random
import re
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sandlot.tasks.task import Ending

CONTROL_TESTS: Final = 8
"""Tests of a control file: a blind guess at the pattern is right once in 2**8, and it is never all-pass or all-fail."""

_WORDS: Final = ("parse", "render", "merge", "split", "index", "empty", "nested", "value", "token", "order", "cache", "limit")


@dataclass(frozen=True, slots=True)
class ControlFile:
    """One module of control tests."""

    name: str
    source: str
    expected: Mapping[str, bool]
    """By test function: whether it must pass."""

    def contradictions(self, outcomes: Mapping[str, Ending]) -> tuple[str, ...]:
        """Control tests that were reported otherwise than they must end."""
        by_function = {test.rpartition("::")[2]: outcome.outcome for test, outcome in outcomes.items() if self.name in test}
        return tuple(
            function
            for function, passes in self.expected.items()
            if by_function.get(function) != ("passed" if passes else "failed")
        )


def control_file(dice: random.Random) -> ControlFile:
    """A new module with random names and a random pattern, of which at least one test passes and one fails."""
    names: list[str] = []
    while len(names) < CONTROL_TESTS:
        name = f"test_{'_'.join(dice.sample(_WORDS, 2))}_{dice.randrange(10**4)}"
        if name not in names:
            names.append(name)
    pattern = [True, False, *(dice.random() < 0.5 for _ in range(CONTROL_TESTS - 2))]
    dice.shuffle(pattern)
    source = "".join(
        f"def {name}():\n    {_assertion(dice, passes)}\n\n\n" for name, passes in zip(names, pattern, strict=True)
    )
    stem = f"test_{dice.choice(_WORDS)}_{dice.randrange(16**8):08x}"
    return ControlFile(f"{stem}.py", source, dict(zip(names, pattern, strict=True)))


def _assertion(dice: random.Random, passes: bool) -> str:
    left, right = dice.randrange(1000), dice.randrange(1000)
    return f"assert {left} + {right} == {left + right if passes else left + right + dice.randrange(1, 9)}"


@dataclass(frozen=True, slots=True)
class Poisoned:
    """A test file whose named tests all fail at their first line."""

    source: str
    tests: frozenset[str]
    """The ids that must not pass. An id whose function is not in this file in plain sight is not here."""


def poison(source: str, path: str, tests: Iterable[str], dice: random.Random) -> Poisoned:
    """Make the functions behind `tests` (ids that begin with `path::`) fail.

    Source that this Python cannot parse poisons nothing.
    """
    nothing = Poisoned(source, frozenset())
    tree = _parse(source)
    if tree is None:
        return nothing
    lines = re.split(r"(?<=\n)", source)
    heads: dict[int, str] = {}
    reached = set()
    for test in tests:
        prefix, _, inner = test.partition("::")
        places = _heads(tree, inner.split("[", 1)[0]) if prefix == path else []
        indents = {place: _indent(lines, place) for place in places}
        if indents and None not in indents.values():
            heads |= {place: indent for place, indent in indents.items() if indent is not None}
            reached.add(test)
    for line in sorted(heads, reverse=True):
        lines.insert(line - 1, f"{heads[line]}{_assertion(dice, passes=False)}\n")
    poisoned = "".join(lines)
    return Poisoned(poisoned, frozenset(reached)) if _parse(poisoned) is not None else nothing


def _parse(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings(action="ignore"):  # of odd escapes in somebody else's tests
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _heads(tree: ast.AST, name: str) -> list[int]:
    """Line numbers of the first statement of every function "Class::function", those inside `if` and `try` included."""
    first, _, rest = name.partition("::")
    found: list[int] = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.name == name:
                head = node.body[0]
                decorators = getattr(head, "decorator_list", [])
                found.append(min([head.lineno, *(one.lineno for one in decorators)]))
        elif isinstance(node, ast.ClassDef):
            if node.name == first and rest:
                found += _heads(node, rest)
        elif isinstance(node, ast.stmt | ast.ExceptHandler):
            found += _heads(node, name)
    return found


def _indent(lines: list[str], line: int) -> str | None:
    """The white space before the statement on this line, or None when something else stands before it."""
    text = lines[line - 1]
    indent = text[: len(text) - len(text.lstrip())]
    return indent or None
