"""Tests whose outcome is known beforehand, so that a run in which "everything passes" gives itself away. Pure, but for the dice.

Two kinds. `control_file` is a module of small tests with random names, some of which must fail: it runs beside the real tests.
`poison` puts a failing assertion at the head of the very tests that decide, under their own names: that run, in another clean
sandbox, must show none of them as passed. Code that reports a test as passed whatever it does cannot tell the two runs apart by
any name, path or order; only by reading the source of the tests themselves (docs/judging.md says what that leaves open).
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from sandlot.tasks.task import TestOutcome

CONTROL_TESTS: Final = 8
"""Tests of a control file; a blind guess at the pattern is right once in 2**8, and the pattern is never all-pass or all-fail."""

_WORDS: Final = "parse render merge split index empty nested value token order cache limit range state match entry scope".split()


@dataclass(frozen=True, slots=True)
class ControlFile:
    """One module of control tests."""

    name: str
    source: str
    expected: Mapping[str, bool]
    """By test function: whether it must pass."""

    def contradictions(self, outcomes: Mapping[str, TestOutcome]) -> tuple[str, ...]:
        """Control tests that were reported otherwise than they must end."""
        by_function = {test.rpartition("::")[2]: outcome.outcome for test, outcome in outcomes.items() if self.name in test}
        return tuple(
            function for function, passes in self.expected.items() if by_function.get(function) != ("passed" if passes else "failed")
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
    source = "".join(f"def {name}():\n    {_assertion(dice, passes)}\n\n\n" for name, passes in zip(names, pattern, strict=True))
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
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Poisoned(source, frozenset())
    functions = dict(_functions(tree, ""))
    wanted: dict[str, list[ast.stmt]] = {}
    reached = set()
    for test in tests:
        prefix, _, inner = test.partition("::")
        places = functions.get(inner.split("[", 1)[0], [])
        if prefix == path and places:
            wanted[inner.split("[", 1)[0]] = places
            reached.add(test)
    lines = source.splitlines(keepends=True)
    heads = sorted({head.lineno: head for places in wanted.values() for head in places}.items(), reverse=True)
    for line, head in heads:
        indent = lines[line - 1][: head.col_offset]
        lines.insert(line - 1, f"{indent}{_assertion(dice, passes=False)}\n")
    return Poisoned("".join(lines), frozenset(reached))


def _functions(tree: ast.AST, prefix: str) -> dict[str, list[ast.stmt]]:
    """By "Class::function": the first statement of each function of that name, those inside `if` and `try` included."""
    found: dict[str, list[ast.stmt]] = {}
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            if node.body[0].lineno > node.lineno and _starts_line(node.body[0]):
                found.setdefault(f"{prefix}{node.name}", []).append(node.body[0])
        else:
            inner = f"{prefix}{node.name}::" if isinstance(node, ast.ClassDef) else prefix
            for name, heads in _functions(node, inner).items():
                found.setdefault(name, []).extend(heads)
    return found


def _starts_line(statement: ast.stmt) -> bool:
    return statement.col_offset > 0
