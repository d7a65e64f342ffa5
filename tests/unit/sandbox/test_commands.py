"""What a caller may say of a command, and how its end is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sandlot import errors
from sandlot.limits import MAX_ARGV_BYTES, MAX_CAP_BYTES, MAX_ENV_BYTES, MAX_PATH_BYTES, MAX_SCRIPT_BYTES
from sandlot.protocol.answers import Exit, Kept
from sandlot.sandbox.commands import encode_cap, encode_path, encode_timeout, program, result_of


def test_text_is_a_script_and_a_list_is_run_without_a_shell() -> None:
    """The one decision that callers make by type."""
    assert program("echo ä") == {"script": "echo ä".encode()}
    assert program(["echo", b"\xff", Path("/a b")]) == {"argv": (b"echo", b"\xff", b"/a b")}


def test_bytes_that_are_no_text_pass_by_surrogateescape() -> None:
    """What `os.fsdecode` gave for a file's name finds that file."""
    assert program(["cat", "\udcff"]) == {"argv": (b"cat", b"\xff")}
    assert encode_path("/x\udcff") == b"/x\xff"


def test_variables_are_set_emptied_and_removed() -> None:
    """None removes, an empty value stays."""
    assert program("x", env={"A": "l1\nl2", "C": "", "D": None, "E": b"\xff"}) == {
        "script": b"x",
        "env": (b"A=l1\nl2", b"C=", b"D", b"E=\xff"),
    }


def test_users_are_names_or_numbers() -> None:
    """A number is a user too."""
    assert program("x", user=0)["user"] == "0"
    assert program("x", user="1000:1000")["user"] == "1000:1000"


@pytest.mark.parametrize(
    "cmd", ["", [], [""], b"echo", ["a", 5], ["a\0b"], "a\0b", "\ud800", None, 5, {"a"}, [["a"]]], ids=repr
)
def test_impossible_commands_are_the_callers_mistake(cmd: Any) -> None:
    """Told before anything is sent."""
    with pytest.raises((errors.BadRequest, TypeError)):
        program(cmd)


@pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A": "x\0"}, {"A\0": "x"}, {"A": 5}], ids=repr)
def test_impossible_variables_are_the_callers_mistake(env: Any) -> None:
    """The same."""
    with pytest.raises(errors.BadRequest):
        program("x", env=env)


@pytest.mark.parametrize(
    "make",
    [
        lambda: program("x" * (MAX_SCRIPT_BYTES + 1)),
        lambda: program(["x", "y" * MAX_ARGV_BYTES]),
        lambda: program(["x", *[""] * MAX_ARGV_BYTES]),
        lambda: program("x", env={"A": "y" * MAX_ENV_BYTES}),
        lambda: program("x", cwd="/" + "y" * MAX_PATH_BYTES),
    ],
)
def test_what_is_too_long_is_told_as_that(make: Any) -> None:
    """With the limit in the text."""
    with pytest.raises(errors.ArgumentTooLong, match="at most"):
        make()


def test_limits_themselves_are_allowed() -> None:
    """The last byte counts."""
    assert len(program("x" * MAX_SCRIPT_BYTES)["script"] or b"") == MAX_SCRIPT_BYTES
    assert encode_cap(MAX_CAP_BYTES) == MAX_CAP_BYTES
    assert len(encode_path("/" * MAX_PATH_BYTES)) == MAX_PATH_BYTES


@pytest.mark.parametrize("limit", [0, -1, float("nan"), float("inf"), "5", True])
def test_impossible_time_limits_are_refused(limit: Any) -> None:
    """Zero is not 'no limit'."""
    with pytest.raises(errors.BadRequest):
        encode_timeout(limit)


@pytest.mark.parametrize(("seconds", "ms"), [(None, None), (1, 1000), (0.0001, 1), (0.0015, 2), (1e300, 2**53)])
def test_time_limits_are_rounded_up(seconds: float | None, ms: int | None) -> None:
    """A limit is never shorter than asked for."""
    assert encode_timeout(seconds) == ms


@pytest.mark.parametrize("cap", [-1, MAX_CAP_BYTES + 1, "1 parsec", "300MiB"])
def test_impossible_caps_are_refused(cap: Any) -> None:
    """Memory is bounded by the caller's word, which is bounded too."""
    with pytest.raises(errors.BadRequest):
        encode_cap(cap)


def test_result_joins_what_came_in_chunks_and_with_the_exit() -> None:
    """In order, with the gap where it is."""
    exit = Exit(id=1, code=1, out=Kept(100, 9, 6, b"ghi"), err=Kept(), wall_us=1_500_000, user_us=1, spawn_us=90)
    result = result_of(exit, [b"abc", b"def"], [])
    assert result.stdout_bytes == b"abcdefghi"
    assert (result.out.total_bytes, result.out.head_bytes, result.truncated) == (100, 6, True)
    assert result.stdout == "abcdef\n[... 91 bytes left out ...]\nghi"
    assert (result.exit_code, result.usage.wall_s, result.stderr) == (1, 1.5, "")


def test_signal_code_and_time_limit_are_told_apart() -> None:
    """Never one number for all."""
    killed = result_of(Exit(id=1, signal=9, timed_out=True, oom=True))
    assert (killed.code, killed.signal, killed.exit_code, killed.timed_out, killed.oom_killed) == (None, 9, 137, True, True)
