"""`sandlot run` as its users meet it: a process, its folder, its exit code, its one line of error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandlot.rollout import read_results
from tests.calc import write_tasks

COMMAND = [sys.executable, "-m", "sandlot.cli.main"]
PATIENCE_S = 100


def _sandlot(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S, check=False)


def _report(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)["report"]
    return report


def _errors(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("sandlot: ")]


@pytest.fixture
def tasks(tmp_path: Path, calc_layer: Path) -> Path:
    """Two small tasks in a file."""
    return write_tasks(tmp_path, calc_layer, "one", "two")


def test_gold_scores_one_and_none_scores_nothing(tasks: Path, tmp_path: Path) -> None:
    """With results, events and reports in the folder, and nothing left."""
    for agent, reward in (("gold", 1.0), ("none", 0.0)):
        done = _sandlot("run", tasks, "--agent", agent, "--per-task", 2, "--out", tmp_path / agent, "--json")
        report = _report(done)
        assert (done.returncode, report["mean_reward"], report["lost"], report["sandboxes"]["left"]) == (0, reward, 0, 0)
        names = {path.name for path in (tmp_path / agent).iterdir()}
        assert {"request.json", "results.jsonl", "events.jsonl", "report.json", "report.txt", "report.html"} <= names
        assert ".reserve" not in names


def test_calls_are_recorded_with_digests(tasks: Path, tmp_path: Path) -> None:
    """Every exec and file call of a rollout, agent's and judge's; contents only when asked for."""
    done = _sandlot("run", tasks, "--agent", "echo a word", "--task", "one", "--out", tmp_path / "run", "--keep-contents")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    (call,) = [event["data"] for event in events if event["kind"] == "exec" and event["data"]["subject"] == "echo a word"]
    assert (call["exit_code"], call["stdout_bytes"], call["phase"]) == (0, 7, "agent")
    digest = call["stdout_sha256"]
    assert (tmp_path / "run/contents" / digest[:2] / digest).read_bytes() == b"a word\n"
    assert {event["data"]["phase"] for event in events if event["kind"] in ("exec", "file")} == {"agent", "quiesce", "judge"}


def test_the_same_call_runs_nothing_again(tasks: Path, tmp_path: Path) -> None:
    """And another call in the same folder is refused."""
    first = _sandlot("run", tasks, "--agent", "none", "--out", tmp_path / "run", "--json")
    before = (tmp_path / "run/results.jsonl").read_bytes()
    again = _sandlot("run", tasks, "--agent", "none", "--out", tmp_path / "run", "--json")
    assert (tmp_path / "run/results.jsonl").read_bytes() == before
    assert _report(again)["tasks"] == _report(first)["tasks"]
    other = _sandlot("run", tasks, "--agent", "gold", "--out", tmp_path / "run")
    assert other.returncode == 2
    assert "agent was none, now gold" in other.stderr


SLOW = "sleep 1; echo change > made"


@pytest.fixture
def slow_run(tasks: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A run of twelve rollouts, two at a time, of which some are finished."""
    words = _slow_words(tasks, tmp_path)
    process = subprocess.Popen([*COMMAND, *words], stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        results = tmp_path / "run/results.jsonl"
        deadline = time.monotonic() + PATIENCE_S
        while not results.exists() or results.read_bytes().count(b"\n") < 2:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.communicate()


def _slow_words(tasks: Path, folder: Path) -> list[str]:
    words = ("run", tasks, "--agent", SLOW, "--per-task", 6, "--concurrency", 2, "--out", folder / "run")
    return [str(word) for word in words]


def _continue(tasks: Path, folder: Path, kept: int) -> None:
    done = _sandlot(*_slow_words(tasks, folder), "--json")
    report = _report(done)
    assert (done.returncode, report["finished"], report["asked"], report["lost"]) == (0, 12, 12, 0)
    assert f"continuing: {kept} of 12" in done.stderr
    results = read_results(folder / "run")
    assert len({result.key for result in results}) == 12
    assert (folder / "run/results.jsonl").read_bytes().count(b"\n") == 12


def test_killed_run_continues_and_leaves_nothing(tasks: Path, tmp_path: Path, slow_run: subprocess.Popen[str]) -> None:
    """kill -9, the same command again: the rest is run, the table is whole, no sandbox is left."""
    slow_run.send_signal(signal.SIGKILL)
    slow_run.wait()
    kept = len(read_results(tmp_path / "run"))
    assert 2 <= kept < 12
    _continue(tasks, tmp_path, kept)
    _wait_gone(tmp_path / "run")


def test_interrupted_run_says_so_and_keeps_its_results(tasks: Path, tmp_path: Path, slow_run: subprocess.Popen[str]) -> None:
    """Ctrl-C: exit 130, a report of what there is, and the same command continues."""
    slow_run.send_signal(signal.SIGINT)
    _, said = slow_run.communicate(timeout=PATIENCE_S)
    kept = len(read_results(tmp_path / "run"))
    assert slow_run.returncode == 130
    assert f"stopped: {kept} of 12" in said
    assert "Traceback" not in said
    assert (tmp_path / "run/report.json").exists()
    _wait_gone(tmp_path / "run")
    _continue(tasks, tmp_path, kept)


def _wait_gone(run: Path) -> None:
    """Until no sandbox of this run is on the machine any more."""
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    ours = {event["sandbox"] for event in events if "sandbox" in event}
    deadline = time.monotonic() + 30
    while True:
        hosts = json.loads(_sandlot("ps", "--json").stdout)["hosts"]
        left = {box["name"] for host in hosts for box in host["sandboxes"]} & ours
        if not left:
            return
        assert time.monotonic() < deadline, left
        time.sleep(0.1)


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


def test_full_disk_is_one_line_and_loses_nothing_that_was_done(tasks: Path, small_disk: Path) -> None:
    """Contents fill it while results are written; after making room the same command continues."""
    filler = "head -c 300000 /dev/urandom | od -x"
    words = (
        "run",
        tasks,
        "--agent",
        filler,
        "--per-task",
        3,
        "--concurrency",
        1,
        "--out",
        small_disk / "run",
        "--keep-contents",
    )
    done = _sandlot(*words)
    assert done.returncode == 1, done.stderr
    (line,) = [line for line in _errors(done) if "make room" in line]
    assert "Traceback" not in done.stderr
    kept = read_results(small_disk / "run")
    assert len(kept) < 6
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    again = _sandlot(*words, "--json")
    assert (again.returncode, _report(again)["finished"]) == (0, 6), (again.stderr, line)
    assert {result.key: result for result in kept}.items() <= {one.key: one for one in read_results(small_disk / "run")}.items()


def test_bad_row_is_named_by_line_and_the_others_run(tasks: Path, tmp_path: Path) -> None:
    """The exit code says that something was not run."""
    rows = tasks.read_text().splitlines()
    tasks.write_text("\n".join([rows[0], '{"instance_id": "broken"', rows[1]]) + "\n")
    done = _sandlot("run", tasks, "--agent", "none", "--out", tmp_path / "run", "--json")
    assert (done.returncode, _report(done)["finished"]) == (1, 2)
    assert any("tasks.jsonl:2:" in line for line in _errors(done))


def test_missing_image_is_a_failed_rollout_with_its_class(tasks: Path, tmp_path: Path) -> None:
    """Not retriable, no reward, and the other tasks run."""
    rows = [json.loads(row) for row in tasks.read_text().splitlines()]
    rows[0] |= {"image": "dir:/no/such/image", "layers": []}
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = _sandlot("run", tasks, "--agent", "gold", "--out", tmp_path / "run", "--json")
    report = _report(done)
    assert (done.returncode, report["lost"], report["mean_reward"]) == (1, 1, 1.0)
    assert [(row["phase"], row["kind"], row["tries"]) for row in report["failures"]] == [("acquire", "image_not_found", 1)]
    (line,) = _errors(done)
    assert "/no/such/image" in line
    again = _sandlot("run", tasks, "--agent", "gold", "--out", tmp_path / "run", "--json", "--retry-lost")
    assert "continuing: 1 of 2" in again.stderr
    assert (again.returncode, _report(again)["finished"], _report(again)["lost"]) == (1, 2, 1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--agent", "golden"], "unknown agent 'golden'"),
        (["--agent", "no.module:solve"], "No module named"),
        (["--agent", "gold", "--task", "three"], "no task 'three'"),
        (["--agent", "gold", "--agent-limit", "-1"], "positive"),
    ],
)
def test_calls_that_cannot_work_are_one_line(tasks: Path, tmp_path: Path, words: list[str], message: str) -> None:
    """Before anything is started or written."""
    done = _sandlot("run", tasks, "--out", tmp_path / "run", *words)
    assert done.returncode == 2
    (line,) = _errors(done)
    assert message in line
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("out", ["/proc/run", "file/run"])
def test_folder_that_cannot_be_written_is_one_line(tasks: Path, tmp_path: Path, out: str) -> None:
    """With what to do; nothing is started."""
    (tmp_path / "file").write_text("")
    done = _sandlot("run", tasks, "--agent", "none", "--out", tmp_path / out)
    assert done.returncode == 1
    (line,) = _errors(done)
    assert "cannot write" in line


def test_report_can_be_made_anew(tasks: Path, tmp_path: Path) -> None:
    """From results and events alone."""
    _sandlot("run", tasks, "--agent", "none", "--out", tmp_path / "run")
    before = (tmp_path / "run/report.json").read_bytes()
    for name in ("report.json", "report.html", "report.txt"):
        (tmp_path / "run" / name).unlink()
    done = _sandlot("report", tmp_path / "run")
    assert (done.returncode, (tmp_path / "run/report.json").read_bytes()) == (0, before)
    assert "2 of 2 rollouts" in done.stdout
    assert _sandlot("report", tmp_path).returncode == 2


def test_check_says_which_lines_are_tasks(tasks: Path) -> None:
    """Without running anything; the exit code tells whether all are."""
    assert _sandlot("tasks", "check", tasks).returncode == 0
    with tasks.open("a") as file:
        file.write("{}\n")
    done = _sandlot("tasks", "check", tasks, "--json")
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["tasks"], [error["line"] for error in answer["errors"]]) == (1, ["one", "two"], [3])
