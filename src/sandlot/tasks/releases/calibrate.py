"""Which tests the change repairs and which it must keep: found by running both, several times, under the judge's own
conditions."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import PurePosixPath
from statistics import median
from typing import Final

from sandlot.sandbox import Sandbox
from sandlot.spec import Spec
from sandlot.tasks.examine import Examination, Ran, run_tests
from sandlot.tasks.patch import FilePatch, first_half, parse_patch
from sandlot.tasks.place import apply_patch, place_hidden_tests
from sandlot.tasks.releases.recipe import Calibration, Unsuitable
from sandlot.tasks.task import HiddenTests, Outcomes

RUNS: Final = 5
MIN_FAIL_TO_PASS: Final = 3
MIN_PASS_TO_PASS: Final = 20

_NAMES_ONLY: Final = re.compile(
    r"ImportError|ModuleNotFoundError|NameError|has no attribute|cannot import name|unexpected keyword argument"
)

Lease = Callable[[Spec], AbstractAsyncContextManager[Sandbox]]


async def calibrate(
    lease: Lease, spec: Spec, what: Examination, hidden: HiddenTests, gold_patch: str, *, versions: tuple[str, str]
) -> Calibration:
    """Run the tests on the older tree and with the change, `RUNS` times each, and once with half of the change.

    Raises:
        Unsuitable: too few tests tell the two apart, or half of the change is enough for them.
    """
    gold = parse_patch(gold_patch)

    async def once(patches: Sequence[FilePatch]) -> Ran:
        async with lease(spec) as box:
            await apply_patch(box, what.tree, patches)
            await place_hidden_tests(box, what.tree, hidden)
            return await run_tests(box, what)

    before = [await once(()) for _ in range(RUNS)]
    after = [await once(gold) for _ in range(RUNS)]
    _check_whole(before + after)
    found = sort_tests([ran.outcomes for ran in before], [ran.outcomes for ran in after], tests=what.paths, versions=versions)
    _check_enough(found, after[0])
    half = (await once(first_half(gold))).outcomes
    if all(test in half and half[test].outcome == "passed" for test in found.fail_to_pass):
        raise Unsuitable("half of the change passes every test that the whole repairs")
    return Calibration(
        fail_to_pass=found.fail_to_pass,
        pass_to_pass=found.pass_to_pass,
        unstable=found.unstable,
        set_aside=found.set_aside,
        seconds=round(median(ran.seconds for ran in after), 3),
    )


def sort_tests(
    before: Sequence[Outcomes], after: Sequence[Outcomes], *, tests: tuple[str, ...], versions: tuple[str, str]
) -> Calibration:
    """Each test seen in any run, in the list where it belongs. Pure."""
    fail_to_pass, pass_to_pass, unstable, set_aside = [], [], [], {}
    for test in sorted(set().union(*before, *after)):
        old = {_outcome(run, test) for run in before}
        new = {_outcome(run, test) for run in after}
        if len({outcome == "passed" for outcome in old}) > 1 or len({outcome == "passed" for outcome in new}) > 1:
            unstable.append(test)
        elif new != {"passed"}:
            continue
        elif old == {"passed"}:
            pass_to_pass.append(test)
        elif (reason := _tells_nothing(test, before, tests, versions)) is not None:
            set_aside[test] = reason
        else:
            fail_to_pass.append(test)
    return Calibration(
        fail_to_pass=tuple(fail_to_pass),
        pass_to_pass=tuple(pass_to_pass),
        unstable=tuple(unstable),
        set_aside=set_aside,
        seconds=0.0,
    )


def _outcome(run: Outcomes, test: str) -> str:
    return run[test].outcome if test in run else "missing"


def _tells_nothing(test: str, before: Sequence[Outcomes], tests: tuple[str, ...], versions: tuple[str, str]) -> str | None:
    """Why a repaired test is no test of behaviour: nobody could know the name that it asks for, or it asks for the number.

    A name that the *code* misses is a fault like any other; one that a test misses is a new name.
    """
    endings = [run[test] for run in before if test in run]
    if len(endings) < len(before):
        return "missing before"
    if any(ending.outcome != "failed" for ending in endings):
        return "did not run before"
    if all(_NAMES_ONLY.search(ending.reason) and _is_below(ending.reason.partition(":")[0], tests) for ending in endings):
        return "asks for a new name"
    old, new = versions
    if all(old in ending.reason or new in ending.reason for ending in endings):
        return "asks for the version number"
    return None


def _is_below(path: str, tops: tuple[str, ...]) -> bool:
    return any(PurePosixPath(path).is_relative_to(top) for top in tops)


def _check_whole(runs: Sequence[Ran]) -> None:
    for ran in runs:
        if ran.cut_short:
            said = ran.output.strip().splitlines()[-1:]
            why = f"{ran.cut_short} ({said[0][:200]})" if said else ran.cut_short
            raise Unsuitable(f"a run of the tests did not come to its end: {why}")


def _check_enough(found: Calibration, after: Ran) -> None:
    repaired, kept = len(found.fail_to_pass), len(found.pass_to_pass)
    if repaired >= MIN_FAIL_TO_PASS and kept >= MIN_PASS_TO_PASS:
        return
    broken = next(iter(after.collect_errors.values()), "")
    raise Unsuitable(
        f"{repaired} tests are repaired and {kept} pass in both; {MIN_FAIL_TO_PASS} and {MIN_PASS_TO_PASS} are needed"
        + (f" (some could not be collected: {broken[:200]})" if broken else "")
    )
