"""Every error has an exit code and one line."""

from __future__ import annotations

import json

import click
import pytest

from sandlot import errors
from sandlot.cli.failures import EXIT_CODES, RULES, OwnFailure, own_failures, report
from sandlot.result import Result


def classes(kind: type[errors.SandlotError]) -> list[type[errors.SandlotError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in classes(child))]


def make(kind: type[errors.SandlotError]) -> errors.SandlotError:
    if issubclass(kind, errors.CommandError):
        return kind("went wrong", Result(1))
    return kind("went wrong")


@pytest.mark.parametrize("kind", classes(errors.SandlotError))
def test_every_error_of_the_tree_has_a_code_and_one_line(
    kind: type[errors.SandlotError], capsys: pytest.CaptureFixture[str]
) -> None:
    """What happened stands first; the code is one of the documented ones; standard output stays clean."""
    code = report(make(kind), as_json=False)
    out, err = capsys.readouterr()
    assert code in EXIT_CODES
    assert code != 0
    assert out == ""
    assert err.startswith("sandlot: went wrong")
    assert err.count("\n") == 1


def test_no_rule_hides_another() -> None:
    """A class stands before its bases, so the first match is the closest."""
    for number, rule in enumerate(RULES):
        assert not any(issubclass(later.kind, rule.kind) and later.kind is not rule.kind for later in RULES[number + 1 :])


def test_an_error_says_what_to_do_its_own_hint_first(capsys: pytest.CaptureFixture[str]) -> None:
    """The advice of the class is for errors without a hint."""
    report(errors.ImageNotFound("no image", hint="use dir:PATH"), as_json=False)
    assert capsys.readouterr().err == "sandlot: no image; nothing was created; use dir:PATH\n"
    report(errors.ImageNotFound("no image"), as_json=False)
    assert capsys.readouterr().err == "sandlot: no image; nothing was created; check the image reference\n"


def test_json_errors_are_one_object(capsys: pytest.CaptureFixture[str]) -> None:
    """With the kind and whether trying again may help."""
    assert report(errors.SandboxGone("gone", why="oom"), as_json=True) == 4
    out, err = capsys.readouterr()
    assert out == ""
    assert json.loads(err) == {
        "error": {
            "kind": "sandbox_gone",
            "message": "gone",
            "survived": "its files are lost, other sandboxes are not",
            "advice": "run it again",
            "retriable": True,
        }
    }


def test_control_characters_of_a_sandbox_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """They are spelt out, and line ends folded."""
    report(errors.DaemonFault("a\x1b[2J\nb\x07"), as_json=False)
    err = capsys.readouterr().err
    assert "a\\x1b[2J b\\x07" in err
    assert "\x1b" not in err


def test_usage_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """With where to look."""
    context = click.Context(click.Command("exec"), info_name="exec")
    assert report(click.UsageError("no such option", ctx=context), as_json=False) == 2
    assert capsys.readouterr().err == "sandlot: no such option; see `exec --help`\n"


def test_an_interrupt_is_130(capsys: pytest.CaptureFixture[str]) -> None:
    """As a shell says it."""
    assert report(KeyboardInterrupt(), as_json=False) == 130
    assert "interrupted" in capsys.readouterr().err


def test_a_file_error_names_the_path_and_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    """Errors of this machine's own files are expected too."""
    assert report(PermissionError(13, "Permission denied", "/out"), as_json=False) == 1
    assert "/out" in capsys.readouterr().err
    assert report(errors.SandboxFileNotFound("no such file", path="/a/b"), as_json=False) == 1
    assert "'/a/b'" in capsys.readouterr().err


def test_a_fault_of_ours_keeps_its_traceback() -> None:
    """What nobody expected is not dressed up."""
    with pytest.raises(ZeroDivisionError):
        report(ZeroDivisionError(), as_json=False)


def test_own_failures_end_with_125(capsys: pytest.CaptureFixture[str]) -> None:
    """Where the exit code belongs to the command that was to be run; the line is the same."""
    with pytest.raises(OwnFailure) as caught, own_failures():
        raise errors.ImageNotFound("no image")
    assert report(caught.value, as_json=False) == 125
    assert capsys.readouterr().err.startswith("sandlot: no image")
