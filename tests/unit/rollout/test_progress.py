"""The line that says what a run waits for."""

from __future__ import annotations

from sandlot.events import Data, Event, EventLog
from sandlot.rollout.phases import Clocks
from sandlot.rollout.progress import Progress


def _events(*rows: tuple[float, str, Data]) -> list[Event]:
    return [Event(number, mono, 0.0, kind, "", data) for number, (mono, kind, data) in enumerate(rows, 1)]


A: Data = {"task": "a", "sample": 0}
B: Data = {"task": "b", "sample": 1}


def test_line_says_how_far_what_it_waits_for_and_the_longest() -> None:
    """Counts by phase, in the order of the phases."""
    progress = Progress(4)
    progress.take(
        _events(
            (1.0, "rollout.phase", {**A, "phase": "judge"}),
            (2.0, "rollout.phase", {**B, "phase": "acquire"}),
            (2.5, "sandbox.usable", {"queue_s": 1.0}),
        )
    )
    assert progress.line(11.0) == "0/4 rollouts; waiting: 1 for a sandbox, 1 for the judge (longest: judge of a #0, 10 s)"


def test_finished_rollouts_count_as_scored_or_lost() -> None:
    """A lost one is no reward of zero."""
    progress = Progress(3)
    progress.count(1.0)
    progress.take(_events((1.0, "rollout.ended", {**A, "reward": 0.0}), (2.0, "rollout.ended", {**B, "reward": None})))
    assert progress.line(3.0) == "3/3 rollouts, mean reward 0.5, 1 lost"


def test_between_phases_a_rollout_waits_for_its_turn() -> None:
    """Such as a judge's, when judges are few."""
    log = EventLog()
    clocks = Clocks(log, "a", 0)
    clocks.say("rollout.phase", phase="quiesce")
    clocks.say("rollout.phase_done", phase="quiesce", seconds=1.0)
    progress = Progress(1)
    progress.take(log.since(progress.seen))
    assert progress.waits() == {"for a turn": 1}
    assert progress.seen == 2
