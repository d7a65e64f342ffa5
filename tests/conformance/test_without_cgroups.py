"""Where no cgroup can be had, commands still end with all they started: keepers hold their trees."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandlot.provider import Provider
from sandlot.sandbox import Sandbox
from sandlot.spec import Spec
from sandlot.testing.conformance import MakeBox
from sandlot.testing.conformance.ending import (
    test_busy_forking_children_die_with_the_time_limit,
    test_cancelled_call_kills_its_command,
    test_kill_leader_spares_the_children,
    test_orphan_with_the_pipe_does_not_outlast_the_time_limit,
    test_time_limit_returns_soon_and_kills_the_whole_tree,
)
from tests.conformance.modes import Mode, as_test_user
from tests.images.build import image

__all__ = [
    "test_busy_forking_children_die_with_the_time_limit",
    "test_cancelled_call_kills_its_command",
    "test_kill_leader_spares_the_children",
    "test_orphan_with_the_pipe_does_not_outlast_the_time_limit",
    "test_time_limit_returns_soon_and_kills_the_whole_tree",
]


@pytest.fixture(scope="module")
def mode() -> Iterator[Mode]:
    """One id, and no group that belongs to the user."""
    with tempfile.TemporaryDirectory(prefix="sandlot-conformance-", dir="/var/tmp") as scratch:
        Path(scratch).chmod(0o755)
        with as_test_user("single", Path(scratch) / "without", lambda _user: ()) as made:
            yield made


@pytest.fixture
async def make_box(provider: Provider) -> AsyncIterator[MakeBox]:
    """Limits are asked for and named as not enforced."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(image_name: str = "busybox", /, **fields: object) -> Sandbox:
            spec = Spec(image=image(image_name), limits="best-effort", **fields)  # type: ignore[arg-type]
            box = await stack.enter_async_context(await provider.create(spec))
            assert "pids" in box.unenforced
            return box

        yield make


async def test_what_runs_while_everything_is_killed_runs_once_or_is_killed(make_box: MakeBox) -> None:
    """Each command has an end that is its own: none is lost, none runs again, none fails for want of anything."""
    box = await make_box()
    await box.exec("(while :; do kill -9 -1; done) >/dev/null 2>&1 &")
    ends = {}
    for number in range(100):
        script = f"echo {number} >> /tmp/ran"
        ended = await box.exec(script if number % 2 else ["sh", "-c", script])
        ends[number] = ended.signal, ended.code
    await box.quiesce("kill")
    ran = Counter(int(line) for line in (await box.exec("touch /tmp/ran; cat /tmp/ran")).stdout.split())
    assert set(ends.values()) <= {(None, 0), (9, None)}
    assert all(ran[number] == 1 for number, end in ends.items() if end == (None, 0))
    assert all(count == 1 for count in ran.values())
