"""Figures and their three forms, from files as runs leave them."""

from __future__ import annotations

import html.parser
import json
from pathlib import Path
from typing import Any

import pytest

from sandlot.errors import BadRequest
from sandlot.report import make_report
from sandlot.report.figures import Spread
from sandlot.report.text import plain

EVIL = "<script>alert(1)</script>\x1b]0;owned\x07\x1b[31m\u202e${x} $\\frac{1}{0}$"


def _result(task: str, sample: int, reward: float | None, **changes: Any) -> dict[str, Any]:
    verdict = None if reward is None else {"reason": "resolved" if reward else "tests_failed"}
    attempts = [] if reward is not None else [_attempt("acquire", "capacity")]
    result = {"task": task, "sample": sample, "status": "failed" if reward is None else "scored", "reward": reward}
    phases = {"acquire": 1.0, "agent": 2.0, "judge": 1.0}
    return {**result, "verdict": verdict, "attempts": attempts, "phases_s": phases, "seconds": 4.0, "started_s": 0.0, **changes}


def _attempt(phase: str, kind: str, message: str = "no room") -> dict[str, Any]:
    return {"phase": phase, "kind": kind, "message": message, "retriable": True, "seconds": 1.0}


def _event(seq: int, mono: float, kind: str, **data: Any) -> dict[str, Any]:
    return {"seq": seq, "mono_s": mono, "wall_s": mono, "kind": kind, "data": data}


EVENTS = [
    _event(1, 100.0, "rollout.phase", task="a", phase="acquire"),
    _event(2, 102.0, "sandbox.usable", queue_s=1.0, create_s=0.5, first_command_s=0.25),
    _event(3, 102.0, "rollout.phase_done", phase="acquire", seconds=2.0),
    _event(4, 102.0, "rollout.phase", task="a", phase="agent"),
    _event(5, 110.0, "provider.closed", created=3, gone=3, left=0),
    _event(1, 5.0, "rollout.phase", task="b", phase="judge"),
    _event(2, 15.0, "provider.closed", created=2, gone=2, left=0),
]


def _folder(folder: Path, results: list[dict[str, Any]], events: list[dict[str, Any]] = EVENTS, torn: str = "") -> Path:
    request = {"agent": "gold", "per_task": 2, "tasks": {"a": "x", "b": "y"}}
    (folder / "request.json").write_text(json.dumps(request))
    (folder / "results.jsonl").write_text("".join(json.dumps(result) + "\n" for result in results) + torn)
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


def test_lost_rollouts_are_in_no_average(tmp_path: Path) -> None:
    """They are counted and shown apart, with the class of their failure."""
    results = [_result("a", 0, 1.0), _result("a", 1, None), _result("b", 0, None), _result("b", 1, None)]
    figures = make_report(_folder(tmp_path, results)).figures
    assert (figures.scored, figures.lost, figures.mean_reward) == (1, 3, 1.0)
    assert [(row.task, row.mean_reward, row.lost) for row in figures.tasks] == [("a", 1.0, 1), ("b", None, 2)]
    assert [(row.phase, row.kind, row.tries, row.lost) for row in figures.failures] == [("acquire", "capacity", 3, 3)]


def test_tries_that_were_made_good_are_no_losses(tmp_path: Path) -> None:
    """A retried failure shows as a try; the rollout counts as scored."""
    results = [_result("a", 0, 1.0, attempts=[_attempt("judge", "transport")])]
    (row,) = make_report(_folder(tmp_path, results)).figures.failures
    assert (row.tries, row.lost) == (1, 0)


def test_times_come_from_events_and_a_continued_run_has_no_gap(tmp_path: Path) -> None:
    """Both parts of a run that was stopped are added; the time in between is not."""
    figures = make_report(_folder(tmp_path, [_result("a", 0, 1.0)])).figures
    assert figures.first_commands_s == (1.75,)
    assert figures.wall_s == 20.0
    assert figures.stalled_share == 0.1
    assert figures.waiting_share == 0.25
    assert figures.sandboxes == {"created": 5, "gone": 5, "left": 0}


def test_spread_is_nearest_rank() -> None:
    """Each figure was really measured."""
    assert Spread.of(range(1, 101)) == Spread(100, 50, 90, 99, 100)
    assert Spread.of([7.0]) == Spread(1, 7.0, 7.0, 7.0, 7.0)
    assert Spread.of([]) is None


def test_hostile_text_is_harmless_in_every_form(tmp_path: Path) -> None:
    """Names and messages from inside become text: no markup in the page, no control characters on the terminal."""
    verdict = {"reason": EVIL, "left_out": [{"reason": EVIL, "files": 2}], "detail": EVIL}
    results = [
        _result(EVIL, 0, 0.0, verdict=verdict),
        _result("b", 0, None, attempts=[_attempt(EVIL, EVIL, EVIL)]),
    ]
    report = make_report(_folder(tmp_path, results))
    assert all(char.isprintable() or char == "\n" for char in report.text)
    page = report.files["report.html"].decode()
    tags = _Tags()
    tags.feed(page)
    assert tags.scripts == 0
    assert not tags.handlers
    assert "\x1b" not in page
    assert "alert(1)" in page


class _Tags(html.parser.HTMLParser):
    """Counts what a browser would run or fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.scripts = 0
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag in ("script", "iframe", "object", "embed", "link")
        self.handlers += [name for name, value in attrs if name.startswith("on") or "javascript:" in (value or "")]
        self.handlers += [value for name, value in attrs if name in ("src", "href", "xlink:href") and value and value[0] != "#"]


def test_page_stands_alone_and_has_every_plot(tmp_path: Path) -> None:
    """One file with the five plots inside."""
    results = [_result("a", 0, 1.0), _result("b", 0, None)]
    page = make_report(_folder(tmp_path, results)).files["report.html"].decode()
    assert page.count("<svg") == 5
    for title in ("Time to first command", "Phases", "over time", "by class", "Slowest tasks"):
        assert title in page


@pytest.mark.parametrize("torn", ['{"task"', "null\n", "\x00\n", '{"task": 1}\n'])
def test_lines_that_cannot_be_read_are_counted(tmp_path: Path, torn: str) -> None:
    """A report is made of the rest."""
    figures = make_report(_folder(tmp_path, [_result("a", 0, 1.0)], torn=torn)).figures
    assert (figures.finished, figures.unreadable) == (1, 1)


def test_run_without_anything_finished_still_has_a_report(tmp_path: Path) -> None:
    """Also with an events file that is not there."""
    folder = _folder(tmp_path, [], [])
    (folder / "events.jsonl").unlink()
    report = make_report(folder)
    assert (report.figures.asked, report.figures.finished, report.figures.mean_reward) == (4, 0, None)
    assert "0 of 4" in report.text


def test_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    """With the remedy."""
    with pytest.raises(BadRequest, match="--out"):
        make_report(tmp_path)


def test_json_is_the_figures(tmp_path: Path) -> None:
    """For programs: the same numbers."""
    report = make_report(_folder(tmp_path, [_result("a", 0, 1.0)]))
    assert json.loads(report.files["report.json"])["mean_reward"] == 1.0


@pytest.mark.parametrize("char", ["\x1b", "\x07", "\r", "\n", "\x9b", "\u202e", "\u2028", "\0"])
def test_plain_text_has_nothing_a_terminal_obeys(char: str) -> None:
    """Escapes, control characters of both sets, and marks that turn the direction of writing."""
    assert plain(f"a{char}b") == "a b"
