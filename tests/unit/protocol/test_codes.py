"""Error codes and the exceptions they stand for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandlot import errors
from sandlot.protocol.answers import Error
from sandlot.protocol.codes import CODES, error_from

CONTRACT = (Path(__file__).parents[3] / "wire" / "contract.md").read_text()
CLOSED_SET = re.search(r"Codes, a closed set:\n`([^`]*)`", CONTRACT)


def test_every_code_of_the_contract_has_a_class_and_no_other() -> None:
    """The map is complete, in both directions."""
    assert CLOSED_SET is not None
    assert set(CODES) == set(CLOSED_SET[1].split())


@pytest.mark.parametrize("code", sorted(CODES))
def test_every_code_makes_an_error_that_says_what_the_daemon_said(code: str) -> None:
    """The text is kept, the class is one of the tree."""
    error = error_from(Error(id=1, code=code, message="because of this"))
    assert isinstance(error, errors.SandlotError)
    assert "because of this" in str(error)


def test_unknown_code_counts_as_internal_and_is_named() -> None:
    """A newer daemon's code is no crash and not lost."""
    error = error_from(Error(id=1, code="next_year", message="new"))
    assert isinstance(error, errors.DaemonFault)
    assert "next_year" in str(error)


def test_file_errors_are_the_errors_a_local_call_would_raise() -> None:
    """Type, number and path."""
    error = error_from(Error(id=1, code="not_found", message="no such file", errno=2, path=b"/a\xff"))
    assert isinstance(error, FileNotFoundError)
    assert (error.errno, error.filename) == (2, "/a\udcff")


def test_reason_of_an_end_is_one_of_the_closed_set() -> None:
    """What a daemon invents is unknown."""
    reasons = [error_from(Error(id=1, code="gone", message="m", why=why)) for why in ("oom", "made up", None)]
    assert [getattr(error, "why", "") for error in reasons] == ["oom", "unknown", "unknown"]


def test_control_characters_of_a_daemon_do_not_reach_a_terminal() -> None:
    """Messages are shown to people."""
    assert "\x1b" not in str(error_from(Error(id=1, code="\x1b[2J", message="\x1b]0;x\x07")))
