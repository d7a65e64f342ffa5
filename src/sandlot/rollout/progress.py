"""What a run is doing and what it waits for, folded from its events. Pure; the command line draws it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from sandlot.events import Event

WAITS: Final = {
    "acquire": "for a sandbox",
    "agent": "for the agent",
    "quiesce": "to quiesce",
    "judge": "for the judge",
}
"""What each phase waits for, in words."""

TURN: Final = "for a turn"
"""Between two phases: the next has no place free."""


@dataclass(slots=True)
class Progress:
    """The state of a run as its events tell it."""

    total: int
    done: int = 0
    """Finished before this process began, too."""
    scored: int = 0
    lost: int = 0
    reward: float = 0.0
    """Sum over scored rollouts."""
    seen: int = 0
    """Number of the last event taken in."""
    _running: dict[tuple[str, int], tuple[str, float]] = field(default_factory=dict)

    def take(self, events: Iterable[Event]) -> None:
        """Fold in events, in order."""
        for event in events:
            self.seen = event.seq
            if event.kind.startswith("rollout."):
                self._take_one(event, (str(event.data.get("task")), int(event.data.get("sample") or 0)))

    def _take_one(self, event: Event, key: tuple[str, int]) -> None:
        if event.kind == "rollout.phase":
            self._running[key] = (str(event.data["phase"]), event.mono_s)
        elif event.kind == "rollout.phase_done":
            self._running[key] = ("", event.mono_s)
        elif event.kind == "rollout.ended":
            self._running.pop(key, None)
            self.count(event.data.get("reward"))

    def count(self, reward: object) -> None:
        """One more finished rollout: scored with this reward, or lost when it is no number."""
        self.done += 1
        if isinstance(reward, int | float):
            self.scored += 1
            self.reward += reward
        else:
            self.lost += 1

    def waits(self) -> dict[str, int]:
        """How many rollouts wait for what."""
        counts = Counter(WAITS.get(phase, TURN) for phase, _ in self._running.values())
        return {word: counts[word] for word in (*WAITS.values(), TURN) if counts[word]}

    def line(self, now_s: float) -> str:
        """One line: how far it is, what it waits for, and what it has waited for the longest. `now_s` is monotonic."""
        mean = f", mean reward {self.reward / self.scored:.3g}" if self.scored else ""
        lost = f", {self.lost} lost" if self.lost else ""
        waits = ", ".join(f"{count} {word}" for word, count in self.waits().items())
        text = f"{self.done}/{self.total} rollouts{mean}{lost}"
        return f"{text}; waiting: {waits}{self._longest(now_s)}" if waits else text

    def _longest(self, now_s: float) -> str:
        working = [(since, key, phase) for key, (phase, since) in self._running.items() if phase]
        if not working:
            return ""
        since, (task, sample), phase = min(working)
        return f" (longest: {phase} of {task} #{sample}, {now_s - since:.0f} s)"
