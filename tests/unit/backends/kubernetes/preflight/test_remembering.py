"""What was tried, kept for a day."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.backends.kubernetes.preflight.facts import Tried
from sandlot.backends.kubernetes.preflight.remembering import KEPT_S, Memory
from sandlot.errors import WriteFailed

TRIED = (Tried("dial-in", "image", True, 0.5), Tried("dial-out", "image", False, None, "no"))


def test_what_was_tried_is_known_for_a_day(tmp_path: Path) -> None:
    """For that server and namespace alone; a clock that was set back knows nothing either."""
    now = 1000.0
    memory = Memory(tmp_path / "new", lambda: now)
    memory.keep("https://a", "rl", TRIED)
    assert memory.recall("https://a", "rl") == TRIED
    assert memory.recall("https://a", "other") == memory.recall("https://b", "rl") == ()
    now = 1000.0 + KEPT_S
    assert memory.recall("https://a", "rl") == ()
    now = 999.0
    assert memory.recall("https://a", "rl") == ()


def test_a_note_that_is_broken_is_no_note(tmp_path: Path) -> None:
    """Nothing that is kept for speed may be in the way."""
    memory = Memory(tmp_path)
    memory.keep("https://a", "rl", TRIED)
    next(tmp_path.glob("*.json")).write_text("{")
    assert memory.recall("https://a", "rl") == ()


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    """By its path."""
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteFailed):
        Memory(tmp_path / "file").keep("https://a", "rl", TRIED)
