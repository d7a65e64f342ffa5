"""The folder of a run: continuing, tearing, locking and filling up."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandlot.errors import BadRequest, WriteFailed
from sandlot.rollout.groups import group_results
from sandlot.rollout.results import Attempt, RolloutResult, decode_result, encode_result, unfinished
from sandlot.rollout.store import RESERVE, RESULTS, RunStore, read_results, write_whole
from sandlot.tasks.verdict import LeftOut, Verdict

REQUEST = {"tasks": ["a", "b"], "agent": "gold", "per_task": 2}


def _result(task: str, sample: int = 0, *, text: str = "") -> RolloutResult:
    verdict = Verdict(reason="resolved", left_out=(LeftOut("runner configuration", 1, ("conftest.py",)),), detail=text)
    return RolloutResult(task=task, sample=sample, status="scored", reward=1.0, verdict=verdict, phases_s={"judge": 0.5})


LOST = RolloutResult(
    task="b", sample=0, status="failed", reward=None, attempts=(Attempt("acquire", "capacity", "no room", True, 1.0),)
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_results_read_back_as_they_were() -> None:
    """Scored and failed ones alike, through their line of JSON."""
    for result in (_result("a", text="line\nend \N{SNOWMAN}"), LOST):
        assert decode_result(encode_result(result)) == result
        assert encode_result(result).count(b"\n") == 1


def test_the_same_call_continues_and_nothing_finished_runs_again(tmp_path: Path) -> None:
    """Failed rollouts have used up their tries: they are finished too."""
    with RunStore(tmp_path, REQUEST) as store:
        store.write(_result("a", 1))
        store.write(LOST)
    with RunStore(tmp_path, REQUEST) as store:
        assert store.done == [_result("a", 1), LOST]
        assert unfinished(["a", "b"], 2, store.done) == [("a", 0), ("b", 1)]
        store.write(_result("a", 0))
    assert [result.key for result in read_results(tmp_path)] == [("a", 1), ("b", 0), ("a", 0)]


def test_another_call_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    """The message says what differs; the folder is as it was."""
    RunStore(tmp_path, REQUEST).close()
    with pytest.raises(BadRequest, match="agent was gold, now none"):
        RunStore(tmp_path, {**REQUEST, "agent": "none"})
    RunStore(tmp_path, REQUEST).close()


def test_two_runs_cannot_share_a_folder_at_once(tmp_path: Path) -> None:
    """The second is told, also when it asks for the same."""
    with RunStore(tmp_path, REQUEST), pytest.raises(BadRequest, match="another process"):
        RunStore(tmp_path, REQUEST)


@pytest.mark.parametrize("torn", [b"{", b'{"task":"b","sam', b"\x00\xff"])
def test_half_a_line_at_the_end_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    """A process killed in the middle of a write loses that line only, and what follows is whole again."""
    with RunStore(tmp_path, REQUEST) as store:
        store.write(_result("a"))
    with (tmp_path / RESULTS).open("ab") as file:
        file.write(torn)
    assert read_results(tmp_path) == [_result("a")]
    with RunStore(tmp_path, REQUEST) as store:
        store.write(_result("b"))
    assert read_results(tmp_path) == [_result("a"), _result("b")]


def test_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    """That is no torn write: somebody must look at it, and nothing is dropped silently."""
    RunStore(tmp_path, REQUEST).close()
    (tmp_path / RESULTS).write_bytes(encode_result(_result("a")) + b"{}\n" + encode_result(_result("b")))
    with pytest.raises(BadRequest, match=r"results\.jsonl:2"):
        RunStore(tmp_path, REQUEST)


def test_results_without_a_request_are_not_overwritten(tmp_path: Path) -> None:
    """A folder that only looks like a run is left alone."""
    (tmp_path / RESULTS).write_bytes(encode_result(_result("a")))
    with pytest.raises(BadRequest, match="not what was asked"):
        RunStore(tmp_path, REQUEST)


def test_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    """Here because a file stands in the way."""
    (tmp_path / "file").write_text("")
    with pytest.raises(WriteFailed, match="cannot write"):
        RunStore(tmp_path / "file" / "run", REQUEST)


def test_results_finished_when_the_disk_fills_up_are_still_kept(small_disk: Path) -> None:
    """The space kept back takes them; the error says what to do; after making room the run goes on."""
    filler = small_disk / "filler"
    with RunStore(small_disk / "run", REQUEST) as store:
        store.write(_result("a", 0))
        _fill(filler)
        with pytest.raises(WriteFailed, match="make room") as caught:
            _write_many(store)
        assert caught.value.errno == errno.ENOSPC
        kept = list(store.done)
        assert not (small_disk / "run" / RESERVE).exists()
    assert read_results(small_disk / "run") == kept
    filler.unlink()
    with RunStore(small_disk / "run", REQUEST) as store:
        assert store.done == kept
        store.write(_result("b"))


def test_run_on_a_full_disk_does_not_begin(small_disk: Path) -> None:
    """Better before the work than after it."""
    _fill(small_disk / "filler")
    with pytest.raises(WriteFailed, match="make room"):
        RunStore(small_disk / "run", REQUEST)


def _write_many(store: RunStore) -> None:
    for sample in range(1, 200):
        store.write(_result("a", sample, text="x" * 4000))


def _fill(path: Path) -> None:
    done = subprocess.run(["dd", "if=/dev/zero", f"of={path}", "bs=4k"], capture_output=True, check=False)
    assert b"No space left" in done.stderr


def test_kill_at_any_moment_leaves_whole_results(tmp_path: Path) -> None:
    """A real process that writes without end is killed without warning; the folder opens and all whole lines are there."""
    command = [sys.executable, "-c", WRITER, str(tmp_path), repr(REQUEST)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": _paths()}) as writer:
        assert writer.stdout is not None
        told = 0
        while told < 50:
            told = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split("\n")
    told = max([told, *(int(line) for line in rest[:-1] if line)])
    with RunStore(tmp_path, REQUEST) as store:
        assert {result.sample for result in store.done} >= set(range(told + 1))


WRITER = """
import ast, sys
from sandlot.rollout.results import RolloutResult
from sandlot.rollout.store import RunStore
store = RunStore(sys.argv[1], ast.literal_eval(sys.argv[2]))
for sample in range(10**6):
    store.write(RolloutResult(task="a", sample=sample, status="scored", reward=1.0))
    print(sample, flush=True)
"""


def _paths() -> str:
    return os.pathsep.join(path for path in sys.path if path)


def test_whole_file_is_old_or_new(tmp_path: Path) -> None:
    """Nothing is left beside it."""
    write_whole(tmp_path / "f", b"old")
    write_whole(tmp_path / "f", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("f", b"new")]


def test_where_nothing_can_be_written_the_error_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the half-written file cannot be removed either, as on a file system that became read-only."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(WriteFailed, match=r"cannot write .*/f: Read-only") as caught:
        write_whole(tmp_path / "f", b"new")
    assert "writable" in caught.value.hint


def test_a_file_in_the_place_of_the_folder_is_told_with_what_to_do(tmp_path: Path) -> None:
    """Or somewhere above it."""
    (tmp_path / "file").write_bytes(b"")
    for folder in (tmp_path / "file", tmp_path / "file/run"):
        with pytest.raises(WriteFailed, match="cannot write") as caught:
            RunStore(folder, {})
        assert "choose another" in caught.value.hint


def test_lost_rollouts_are_counted_apart_from_rewards() -> None:
    """They are in no average; a group of only lost ones has no mean at all."""
    mixed, lost = group_results([_result("a", 1), LOST, _result("a", 0)])
    assert ([result.sample for result in mixed.results], mixed.mean_reward, mixed.lost) == ([0, 1], 1.0, 0)
    assert (lost.rewards, lost.mean_reward, lost.lost) == ((), None, 1)
