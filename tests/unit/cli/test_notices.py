"""What is told of waiting, on standard error."""

from __future__ import annotations

import pytest

from sandlot.cli.notices import EVERY_S, show_notices


def test_a_crowd_that_waits_for_the_same_is_one_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """And nothing that a registry or node wrote reaches the terminal as it is."""
    now_s = 100.0
    tell = show_notices(lambda: now_s)
    for pod in range(1000):
        tell(f"p-{pod}: its image\x1b[31m could not be pulled\nyet")
    now_s += EVERY_S
    tell("later")
    said = capsys.readouterr()
    assert said.err.splitlines() == ["sandlot: p-0: its image\\x1b[31m could not be pulled yet", "sandlot: later"]
    assert said.out == ""
