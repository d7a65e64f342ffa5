"""One Ctrl-C too many."""

from __future__ import annotations

import signal

import pytest

from sandlot.interrupts import patience


def test_one_interrupt_is_taken_and_the_next_goes_through() -> None:
    """The second Ctrl-C of a hurried person does nothing; the third does what it always did."""
    with patience():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_overlapping_blocks_restore_the_handler_in_any_order() -> None:
    """Two providers that close at the same time leave the handler that was there before both."""
    before = signal.getsignal(signal.SIGINT)
    one, two = patience(), patience()
    one.__enter__()
    two.__enter__()
    one.__exit__(None, None, None)
    two.__exit__(None, None, None)
    assert signal.getsignal(signal.SIGINT) is before
