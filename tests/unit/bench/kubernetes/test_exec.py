"""Commands by every way, as figures."""

from __future__ import annotations

import pytest

from sandlot.bench.kubernetes.exec import Times, code_of
from sandlot.errors import DaemonFault


def test_ratios_are_medians_of_blocks_taken_in_the_same_round() -> None:
    """A slow round slows both: 2, 3 and 2 times the floor are 2 times."""
    floor = Times([[0.001, 0.001], [0.010, 0.010], [0.001, 0.001]])
    row = Times([[0.002, 0.002], [0.030, 0.030], [0.002, 0.002]]).row("way", floor)
    assert row.ratio == pytest.approx(2.0)
    assert (row.n, row.unit) == (6, "ms")
    assert row.floor == pytest.approx(1.0)


def test_an_exec_stream_ends_with_success_or_the_commands_own_code() -> None:
    """What the API server says at the end, as it says it."""
    failed = (
        b'{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code","reason":"NonZeroExitCode",'
        b'"details":{"causes":[{"reason":"ExitCode","message":"37"}]}}'
    )
    assert code_of(b'{"metadata":{},"status":"Success"}') == 0
    assert code_of(failed) == 37


def test_a_stream_that_failed_is_no_exit_code() -> None:
    """Nothing that went wrong on the way is a command's answer."""
    with pytest.raises(DaemonFault, match="container not found"):
        code_of(b'{"status":"Failure","message":"container not found","reason":"InternalError"}')
