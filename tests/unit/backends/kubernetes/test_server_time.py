"""The server's time, told by dates that have whole seconds."""

from __future__ import annotations

from email.utils import formatdate

import pytest

from sandlot.backends.kubernetes.server_time import KEPT, ServerClock, micro_time, unix_time


class Clock:
    """A clock that is set by hand."""

    now = 5000.0

    def __call__(self) -> float:
        return self.now


def told(clock: ServerClock, server_s: float) -> None:
    clock.observe(formatdate(int(server_s), usegmt=True))


def test_estimate_is_a_close_lower_bound() -> None:
    """Never ahead of the server, and with many answers nearly exact, however slow some of them were."""
    local = Clock()
    clock = ServerClock(local)
    for tenth in range(40):
        local.now = 5000 + tenth / 10
        told(clock, 1_900_000_000.37 + tenth / 10 - (2 if tenth % 3 else 0))
        assert clock.now() <= 1_900_000_000.37 + tenth / 10
    assert clock.now() >= 1_900_000_000.37 + 3.9 - 0.2


def test_clock_that_is_set_back_is_followed() -> None:
    """Old answers are forgotten."""
    local = Clock()
    clock = ServerClock(local)
    told(clock, 1_900_000_000)
    for second in range(KEPT):
        local.now = 5010 + second
        told(clock, 1_800_000_000 + second)
    assert clock.now() <= 1_800_000_000 + KEPT


@pytest.mark.parametrize("date", ["", "yesterday", "Mon, 99 Foo 2026", "\0"])
def test_what_is_no_date_is_ignored(date: str) -> None:
    """It comes from outside."""
    clock = ServerClock(Clock())
    told(clock, 1_900_000_000)
    before = clock.now()
    clock.observe(date)
    assert clock.now() == before


def test_micro_times_go_there_and_back() -> None:
    """As Kubernetes writes them, and its plain times."""
    assert micro_time(1_900_000_000.25) == "2030-03-17T17:46:40.250000Z"
    assert unix_time("2030-03-17T17:46:40.250000Z") == 1_900_000_000.25
    assert unix_time("2030-03-17T17:46:40Z") == 1_900_000_000
    with pytest.raises(ValueError, match="never"):
        unix_time("never")
