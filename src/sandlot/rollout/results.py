"""What a rollout ended as: plain values that go to disk as one line of JSON each, and come back equal."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from sandlot.errors import BadRequest, SandlotError
from sandlot.tasks.verdict import Verdict

Phase = Literal["acquire", "agent", "quiesce", "judge"]
PHASES: Final[tuple[Phase, ...]] = ("acquire", "agent", "quiesce", "judge")

AgentEnd = Literal["finished", "failed", "timed_out", "out_of_memory", "killed"]

MESSAGE_CHARS: Final = 500
"""Of an error's text, which may hold untrusted output."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try that failed: in which phase, as what, after how long, in which sandbox."""

    phase: Phase
    kind: str
    """The `kind` of the error class (`sandlot.errors`), `phase_limit` when the phase took longer than its limit, or
    `agent_error`."""
    message: str
    retriable: bool
    seconds: float
    sandbox: str = ""


@dataclass(frozen=True, slots=True)
class AgentReport:
    """How the agent's own part ended. None of these is a failure of the rollout: what it left is judged."""

    end: AgentEnd
    exit_code: int | None = None
    seconds: float = 0.0
    output_tail: str = ""
    """Untrusted text: the last of what a command agent printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutResult:
    """One rollout, finished: scored, or failed and never a silent zero."""

    task: str
    sample: int
    """0 .. per_task-1: which member of the task's group."""
    status: Literal["scored", "failed"]
    reward: float | None
    """0.0 or 1.0 when scored; None when failed: it belongs in no average."""
    verdict: Verdict | None = None
    agent: AgentReport | None = None
    attempts: tuple[Attempt, ...] = ()
    """What was tried and failed, the last one being why a failed rollout is lost."""
    phases_s: Mapping[str, float] = field(default_factory=dict)
    """Seconds by phase, of the attempt that counted."""
    sandboxes: tuple[str, ...] = ()
    started_s: float = 0.0
    """Unix time in seconds."""
    seconds: float = 0.0
    calls: int = 0
    """Exec and file calls made for it."""

    @property
    def key(self) -> tuple[str, int]:
        return (self.task, self.sample)

    @property
    def failure(self) -> Attempt | None:
        """Why it is lost, or None when it was scored."""
        return self.attempts[-1] if self.status == "failed" else None


def failed_attempt(error: BaseException, *, phase: Phase, seconds: float, sandbox: str = "") -> Attempt:
    """An attempt from what was raised. Only errors of our own tree say that they are retriable."""
    if isinstance(error, SandlotError):
        return Attempt(phase, error.kind, str(error)[:MESSAGE_CHARS], error.retriable, seconds, sandbox)
    text, where = f"{type(error).__name__}: {error}", _where(error)
    text = text[: MESSAGE_CHARS - len(where)] + where
    return Attempt(phase, "agent_error" if phase == "agent" else "internal", text, False, seconds, sandbox)


def _where(error: BaseException) -> str:
    """Where it was raised, for whoever has to mend it."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({frames[-1].filename[-200:]}:{frames[-1].lineno}, in {frames[-1].name[:80]})" if frames else ""


_ENCODER = msgspec.json.Encoder()


def encode_result(result: RolloutResult) -> bytes:
    """One line of JSON, line end included."""
    return _ENCODER.encode(result) + b"\n"


def decode_result(line: bytes) -> RolloutResult:
    """The result of one line.

    Raises:
        BadRequest: the line is no result.
    """
    try:
        return msgspec.json.decode(line, type=RolloutResult)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise BadRequest(f"not a result: {error}") from error


def unfinished(tasks: Sequence[str], per_task: int, done: Iterable[RolloutResult]) -> list[tuple[str, int]]:
    """The rollouts still to run, members of a group side by side. A failed one is finished: its tries are used up."""
    finished = {result.key for result in done}
    return [(task, sample) for task in tasks for sample in range(per_task) if (task, sample) not in finished]
