"""The public names: what `import sandlot` gives, and nothing by accident."""

from __future__ import annotations

import inspect
from types import ModuleType

import sandlot
from sandlot import errors


def test_what_is_there_is_what_is_listed() -> None:
    """Every public name of the package is in `__all__`, submodules aside, in order and once."""
    there = {name for name, value in vars(sandlot).items() if not name.startswith("_") and not isinstance(value, ModuleType)}
    assert there == set(sandlot.__all__)
    assert sandlot.__all__ == sorted(set(sandlot.__all__), key=lambda name: (name.islower(), name))


def test_every_error_is_public() -> None:
    """Whatever can be raised can be caught by name from the package."""
    tree = {name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, errors.SandlotError)}
    assert tree <= set(sandlot.__all__)


def test_every_public_class_and_function_says_what_it_is() -> None:
    """No public name without a docstring."""
    assert [name for name in sandlot.__all__ if not inspect.getdoc(getattr(sandlot, name))] == []
