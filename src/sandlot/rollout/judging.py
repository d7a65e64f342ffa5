"""Judges what an agent left, in a clean twin of its sandbox; docs/judging.md says what that defends against and what it cannot.

    twin 1   the agent's change, guarded, then the hidden tests: run with a control file beside them -> verdict
    twin 2   only if twin 1 says resolved: the same, with every deciding test poisoned. One that passes here is a lie.

A lie is told as such only when the same control holds for the known right change: a control that is itself wrong accuses
nobody.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Protocol

from sandlot.errors import SandboxFileError
from sandlot.sandbox import Diff, Sandbox
from sandlot.spec import Spec
from sandlot.tasks.change import Change, guarded, take_change
from sandlot.tasks.controls import ControlFile, control_file, poison
from sandlot.tasks.examine import Examination, Ran, run_tests
from sandlot.tasks.patch import FilePatch, parse_patch, touched
from sandlot.tasks.place import apply_patch, expected_files, hidden_paths, place_hidden_tests
from sandlot.tasks.printed import PARSERS, Parser
from sandlot.tasks.protect import Guard, guard_for
from sandlot.tasks.task import PytestRun, Task
from sandlot.tasks.verdict import LeftOut, Verdict, judge

Lease = Callable[[Spec], AbstractAsyncContextManager[Sandbox]]


class Judging(Protocol):
    """What the engine needs of a judge. One serves many rollouts at once."""

    async def take(self, box: Sandbox, task: Task) -> Change:
        """The agent's change, from its sandbox, when nothing of the agent runs any more."""

    async def judge(self, task: Task, change: Change, lease: Lease) -> Verdict:
        """The verdict on a change, in clean sandboxes from `lease`. Judging again must be safe."""

    async def judge_in_place(self, box: Sandbox, task: Task) -> Verdict:
        """The verdict in the agent's own sandbox."""


Where = Literal["twin", "in_place"]

RUNS_AT_MOST: Final = 4
"""Runs of the tests for one verdict: real, control of the right change, poisoned, poisoned right change."""

UNCONFIRMED: Final = "not confirmed, since the task has no gold patch"


@dataclass(slots=True, kw_only=True)
class Judge:
    """The judge described above."""

    parsers: Mapping[str, Parser] = field(default_factory=lambda: PARSERS)
    dice: random.Random = field(default_factory=random.SystemRandom)

    async def take(self, box: Sandbox, task: Task) -> Change:
        """All that differs from the image in the task's tree."""
        return await take_change(box, task.tree)

    async def judge(self, task: Task, change: Change, lease: Lease) -> Verdict:
        """The verdict on a change, in clean twins.

        Raises:
            PatchError: the hidden tests do not fit the task's own tree (the task's fault).
            Infrastructure: a twin failed; judging again is safe.
        """
        if change.diff is None:
            return Verdict(reason="change_unusable", detail=change.unusable)
        control = control_file(self.dice)
        async with lease(task.spec) as twin:
            try:
                left_out = await self._take_over(twin, task, change.diff)
                ran = await run_tests(twin, Examination.of(task), parsers=self.parsers, control=control)
            except SandboxFileError as error:
                # The twin was clean: without the agent's change nothing is in the way, and its disk is not full.
                return Verdict(reason="change_unusable", detail=str(error))
        verdict = replace(_verdict(task, ran), left_out=left_out)
        if verdict.reward == 0 or not isinstance(task.run, PytestRun):
            return replace(verdict, uncontrolled=len(task.expected)) if verdict.reward else verdict
        lies = control.contradictions(ran.outcomes)
        if lies and not await self._contradicts_gold(task, lease, control):
            return replace(
                verdict, reason="tampered", detail=_lie(task, f"control tests came out wrong: {', '.join(lies[:3])}")
            )
        return await self._check_poisoned(
            task, change.diff, lease, replace(verdict, controls=len(control.expected) - len(lies))
        )

    async def judge_in_place(self, box: Sandbox, task: Task) -> Verdict:
        """The verdict in the agent's own sandbox: weaker, since all that the agent changed there is in force."""
        control = control_file(self.dice)
        await place_hidden_tests(box, task.tree, task.hidden)
        ran = await run_tests(box, Examination.of(task), parsers=self.parsers, control=control)
        verdict = replace(_verdict(task, ran), where="in_place", uncontrolled=len(task.expected))
        lies = control.contradictions(ran.outcomes) if isinstance(task.run, PytestRun) else ()
        if verdict.reward and lies:
            return replace(verdict, reason="tampered", detail=f"control tests came out wrong: {', '.join(lies[:3])}")
        return verdict

    # --- what a twin holds ---------------------------------------------------------------------------------------------
    async def _take_over(self, twin: Sandbox, task: Task, change: Diff) -> tuple[LeftOut, ...]:
        gold = parse_patch(task.gold_patch)
        guard = await _guard(twin, task, gold)
        kept, left_out = guarded(change, guard)
        await twin.apply(kept, task.tree)
        await apply_patch(twin, task.tree, [patch for patch in gold if patch.path in guard.from_gold])
        await place_hidden_tests(twin, task.tree, task.hidden)
        return left_out

    # --- controls --------------------------------------------------------------------------------------------------------
    async def _check_poisoned(self, task: Task, change: Diff, lease: Lease, verdict: Verdict) -> Verdict:
        seed = self.dice.getrandbits(64)
        async with lease(task.spec) as twin:
            await self._take_over(twin, task, change)
            poisoned, passed = await self._run_poisoned(twin, task, seed)
        if passed:
            passed -= await self._gold_passes_poisoned(task, lease, seed)
        if passed:
            return replace(verdict, reason="tampered", detail=_lie(task, f"passed though made to fail: {min(passed)}"))
        return replace(verdict, controls=verdict.controls + len(poisoned), uncontrolled=len(set(task.expected) - poisoned))

    async def _run_poisoned(self, twin: Sandbox, task: Task, seed: int) -> tuple[frozenset[str], frozenset[str]]:
        """The tests that were made to fail, and those of them that were reported as passed all the same."""
        dice = random.Random(seed)
        poisoned: set[str] = set()
        for path in sorted(expected_files(task)):
            source = await _read_text(twin, f"{task.tree}/{path}")
            if source is None:
                continue
            made = poison(source, path, task.expected, dice)
            await twin.write(f"{task.tree}/{path}", made.source.encode())
            poisoned |= made.tests
        ran = await run_tests(twin, Examination.of(task), parsers=self.parsers, control=control_file(dice))
        passed = {test for test in poisoned if test in ran.outcomes and ran.outcomes[test].outcome == "passed"}
        return frozenset(poisoned), frozenset(passed)

    async def _contradicts_gold(self, task: Task, lease: Lease, control: ControlFile) -> bool:
        if not task.gold_patch:
            return False
        async with lease(task.spec) as twin:
            await self._place_gold(twin, task)
            ran = await run_tests(twin, Examination.of(task), parsers=self.parsers, control=control)
        return bool(control.contradictions(ran.outcomes))

    async def _gold_passes_poisoned(self, task: Task, lease: Lease, seed: int) -> frozenset[str]:
        if not task.gold_patch:
            return frozenset()
        async with lease(task.spec) as twin:
            await self._place_gold(twin, task)
            _, passed = await self._run_poisoned(twin, task, seed)
        return passed

    async def _place_gold(self, twin: Sandbox, task: Task) -> None:
        await apply_patch(twin, task.tree, parse_patch(task.gold_patch))
        await place_hidden_tests(twin, task.tree, task.hidden)


async def _guard(twin: Sandbox, task: Task, gold: tuple[FilePatch, ...]) -> Guard:
    roots = task.run.import_roots if isinstance(task.run, PytestRun) else (".",)
    present: set[str] = set()
    for root in roots:
        for entry in await twin.list(f"{task.tree}/{root}"):
            present.add(entry.path if root == "." else f"{root}/{entry.path}")
    return guard_for(hidden=hidden_paths(task), gold=touched(gold), import_roots=roots, present=present)


async def _read_text(twin: Sandbox, path: str) -> str | None:
    """A test file's text; None where it is missing or is no UTF-8, so that no control can be made of it."""
    try:
        return (await twin.read(path)).decode()
    except (SandboxFileError, UnicodeDecodeError):
        return None


def _verdict(task: Task, ran: Ran) -> Verdict:
    verdict = judge(task.fail_to_pass, task.pass_to_pass, ran.outcomes, cut_short=ran.cut_short)
    return replace(verdict, reason="tests_timed_out") if ran.timed_out else verdict


def _lie(task: Task, what: str) -> str:
    return what if task.gold_patch else f"{what} ({UNCONFIRMED})"
