"""The public names of the package."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sandlot


def test_every_public_name_is_there() -> None:
    """Each of `__all__` can be used, and none is written twice."""
    assert sorted(set(sandlot.__all__)) == sorted(sandlot.__all__)
    for name in sandlot.__all__:
        assert getattr(sandlot, name) is not None
        assert name in dir(sandlot)


def test_what_type_checkers_see_is_what_programs_get() -> None:
    """The imports that only type checkers read name the same modules as those that happen on first use."""
    tree = ast.parse(Path(sandlot.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == sandlot._LATER


def test_an_unknown_name_is_an_attribute_error() -> None:
    """As for any module."""
    with pytest.raises(AttributeError, match="nosuch"):
        sandlot.nosuch  # noqa: B018


def test_importing_the_package_is_cheap() -> None:
    """Neither the event loop nor a backend is loaded before somebody asks for one."""
    script = "import sys, sandlot; assert not {'asyncio', 'msgspec', 'sandlot.provider'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)
