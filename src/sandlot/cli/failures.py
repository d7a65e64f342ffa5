"""The one place where an error becomes an exit code and a line: what happened, what survived, what to do."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

import click
import msgspec

from sandlot import errors

EXIT_CODES: Final[dict[int, str]] = {
    0: "done",
    1: "done, and the answer is no: something failed, is missing or was lost",
    2: "the call cannot work as written: arguments, image, task file",
    3: "this machine cannot do it; `sandlot doctor` says what is missing",
    4: "infrastructure failed; the same call may work",
    5: "something could not be removed; it is named",
    125: "exec and shell only: Sandlot failed, not the command",
    130: "interrupted; everything was cleaned up",
}
"""`exec` and `shell` end with the command's own code, 128 + its signal, or 124 when its time was up."""


OWN_FAILURE: Final = 125
"""As container engines say it: what went wrong is not the command that was to be run."""


class OwnFailure(Exception):
    """A failure of Sandlot in a verb whose exit code belongs to somebody else's command; its cause is the error."""


@contextmanager
def own_failures() -> Iterator[None]:
    """For `exec` and `shell`: errors of Sandlot end them with `OWN_FAILURE`, whatever their class."""
    try:
        yield
    except errors.SandlotError as error:
        raise OwnFailure from error


class Rule(NamedTuple):
    """What an error class means to the person at the terminal."""

    kind: type[BaseException]
    code: int
    survived: str
    advice: str


# First match wins, so a class stands before its bases.
RULES: Final[tuple[Rule, ...]] = (
    Rule(errors.CleanupFailed, 5, "what is named above may still exist", "run `sandlot gc`"),
    Rule(errors.CommandError, 1, "", ""),
    Rule(errors.ImageNotFound, 2, "nothing was created", "check the image reference"),
    Rule(errors.ImageInvalid, 2, "nothing was created", "make or copy the image again"),
    Rule(errors.BadRequest, 2, "nothing was changed", "see --help"),
    Rule(errors.LimitUnenforceable, 3, "nothing was created", "ask for it with --best-effort, or see `sandlot doctor`"),
    Rule(errors.Denied, 3, "nothing was created", "see `sandlot doctor --kubernetes`"),
    Rule(errors.Unsupported, 3, "nothing was created", "see `sandlot doctor`"),
    Rule(errors.SandboxGone, 4, "its files are lost, other sandboxes are not", "run it again"),
    Rule(errors.Capacity, 4, "what runs goes on", "wait, or ask for less at once"),
    Rule(errors.Infrastructure, 4, "nothing was left behind", "run it again"),
    Rule(errors.SandlotError, 1, "", ""),
    Rule(OSError, 1, "nothing else was touched", "check the path and its rights"),
)


def report(error: BaseException, *, as_json: bool) -> int:
    """Say on standard error what went wrong and return the exit code.

    Raises:
        BaseException: the error itself where it is none of those expected here: a fault of ours deserves its traceback.
    """
    if isinstance(error, OwnFailure) and error.__cause__ is not None:
        report(error.__cause__, as_json=as_json)
        return OWN_FAILURE
    if isinstance(error, SystemExit):
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, click.exceptions.Exit):
        return error.exit_code
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        _say(as_json, kind="interrupted", message="interrupted", survived="nothing was left behind", advice="")
        return 130
    if isinstance(error, click.ClickException):
        context = error.ctx if isinstance(error, click.UsageError) else None
        advice = f"see `{context.command_path} --help`" if context else ""
        _say(as_json, kind="usage", message=error.format_message(), survived="", advice=advice)
        return error.exit_code
    for rule in RULES:
        if isinstance(error, rule.kind):
            _say_rule(error, rule, as_json=as_json)
            return rule.code
    raise error


def _say_rule(error: BaseException, rule: Rule, *, as_json: bool) -> None:
    message, advice, kind, retriable = str(error), rule.advice, "os_error", False
    if isinstance(error, errors.SandlotError):
        message, advice = error.message, error.hint or rule.advice
        kind, retriable = error.kind, error.retriable
        path = getattr(error, "path", "")
        message = f"{message}: {path!r}" if path else message
    _say(as_json, kind=kind, message=message, survived=rule.survived, advice=advice, retriable=retriable)


def _say(as_json: bool, *, kind: str, message: str, survived: str, advice: str, retriable: bool = False) -> None:
    if as_json:
        body = {"kind": kind, "message": message, "survived": survived, "advice": advice, "retriable": retriable}
        line = msgspec.json.encode({"error": body}).decode()
    else:
        line = "sandlot: " + "; ".join(one_line(part).rstrip(".") for part in (message, survived, advice) if part)
    print(line, file=sys.stderr)


def one_line(text: str) -> str:
    """Text fit for one line of a terminal: whitespace folded, control characters (a sandbox may have sent them) spelt out."""
    folded = " ".join(text.split())
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in folded)
