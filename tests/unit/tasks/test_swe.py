"""Rows of task files: what is accepted, what is refused and how it is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandlot.errors import BadRequest
from sandlot.tasks.swe import SweRow, encode_row, read_tasks
from sandlot.tasks.task import PrintedRun, PytestRun

PATCH = "--- a/f.py\n+++ b/f.py\n@@ -1 +1 @@\n-a\n+b\n"


def _row(**changes: Any) -> dict[str, Any]:
    row = {"instance_id": "one", "image": "host", "problem_statement": "p", "patch": PATCH, "FAIL_TO_PASS": ["t.py::a"]}
    return {name: value for name, value in {**row, **changes}.items() if value is not None}


def _file(folder: Path, *rows: object) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_lists_and_json_text_of_lists_are_the_same(tmp_path: Path) -> None:
    """Public data sets write test ids either way."""
    rows = [_row(PASS_TO_PASS=["t.py::b"]), _row(instance_id="two", FAIL_TO_PASS='["t.py::a"]', PASS_TO_PASS='["t.py::b"]')]
    one, two = read_tasks(_file(tmp_path, *rows)).rows
    assert (one.fail_to_pass, one.pass_to_pass) == (two.fail_to_pass, two.pass_to_pass) == (("t.py::a",), ("t.py::b",))


def test_bad_rows_are_named_by_line_and_the_others_are_kept(tmp_path: Path) -> None:
    """One bad row never stops the rest; blank lines count as lines."""
    read = read_tasks(_file(tmp_path, _row(), "", "{broken", _row(instance_id=None), _row(instance_id="two")))
    assert [task.id for task in read.rows] == ["one", "two"]
    assert [error.line for error in read.errors] == [3, 4]
    assert "instance_id" in read.errors[1].message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": None}, "no image"),
        ({"patch": "words"}, "patch: the patch is no unified diff"),
        ({"test_patch": "words"}, "test_patch: "),
        ({"FAIL_TO_PASS": []}, "FAIL_TO_PASS is empty"),
        ({"FAIL_TO_PASS": "t.py::a"}, "FAIL_TO_PASS is neither"),
        ({"FAIL_TO_PASS": [1]}, "FAIL_TO_PASS"),
        ({"PASS_TO_PASS": ["t.py::a"]}, "in FAIL_TO_PASS and in PASS_TO_PASS"),
        ({"instance_id": "a/b"}, "slash"),
        ({"tree": "relative"}, "absolute path"),
        ({"layers": ["nowhere"]}, "layers: 'nowhere' is no directory"),
        ({"limits": {"memory": "much"}}, "memory 'much'"),
        ({"limits": {"test_s": -1}}, "positive"),
        ({"run": {"script": "make test"}}, "come together"),
        ({"run": {"pyton": "x"}}, "pyton"),
    ],
)
def test_each_mistake_in_a_row_has_its_own_message(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """The message names the field, so that the row can be repaired."""
    (error,) = read_tasks(_file(tmp_path, _row(**changes))).errors
    assert message in str(error)


def test_second_row_with_the_same_id_is_an_error(tmp_path: Path) -> None:
    """Results are known by id, so two rows cannot share one; the first stays."""
    read = read_tasks(_file(tmp_path, _row(), _row(image="dir:/x")))
    assert [task.spec.image for task in read.rows] == ["host"]
    assert (read.errors[0].line, "taken by" in read.errors[0].message) == (2, True)


@pytest.mark.parametrize(("content", "message"), [(None, "cannot read"), ("", "no rows"), ("\n\n", "no rows")])
def test_file_without_any_row_is_an_error(tmp_path: Path, content: str | None, message: str) -> None:
    """Nothing to run is never a success."""
    path = tmp_path / "tasks.jsonl"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BadRequest, match=message):
        read_tasks(path)


def test_directories_are_relative_to_the_file(tmp_path: Path) -> None:
    """A folder of tasks can be moved as a whole."""
    (tmp_path / "env").mkdir()
    (tmp_path / "hidden").mkdir()
    (task,) = read_tasks(_file(tmp_path, _row(layers=["env"], hidden_tests="hidden"))).rows
    assert (task.spec.layers, task.hidden.directory) == ((str(tmp_path / "env"),), tmp_path / "hidden")


def test_image_may_be_named_as_other_data_sets_do(tmp_path: Path) -> None:
    """`docker_image` and `image_name` stand for `image`; fields nobody knows are passed over."""
    rows = [_row(image=None, docker_image="a:1", repo="x/y"), _row(instance_id="two", image=None, image_name="b:1")]
    assert [task.spec.image for task in read_tasks(_file(tmp_path, *rows)).rows] == ["a:1", "b:1"]


def test_tests_run_by_pytest_unless_a_command_and_its_parser_are_named(tmp_path: Path) -> None:
    """Both forms come from the same field."""
    rows = [_row(run={"python": "/env/bin/python"}), _row(instance_id="two", run={"script": "make test", "parser": "tap"})]
    one, two = read_tasks(_file(tmp_path, *rows)).rows
    assert (one.run, two.run) == (PytestRun(python="/env/bin/python"), PrintedRun(script="make test", parser="tap"))


def test_digest_changes_with_what_matters_and_not_with_the_place(tmp_path: Path) -> None:
    """A run is continued only when its tasks are the same; where they were read from is no part of that."""
    (one,) = read_tasks(_file(tmp_path, _row())).rows
    (moved,) = read_tasks(_file(tmp_path, "", _row())).rows
    (other,) = read_tasks(_file(tmp_path, _row(problem_statement="q"))).rows
    assert one.origin != moved.origin
    assert one.digest == moved.digest != other.digest


def test_a_written_row_reads_back(tmp_path: Path) -> None:
    """What `sandlot tasks` writes is what `sandlot run` reads."""
    row = SweRow(instance_id="one", problem_statement="p", patch=PATCH, FAIL_TO_PASS=("t.py::a",), image="host")
    (tmp_path / "tasks.jsonl").write_bytes(encode_row(row))
    (task,) = read_tasks(tmp_path / "tasks.jsonl").rows
    assert (task.id, task.gold_patch, task.fail_to_pass) == ("one", PATCH, ("t.py::a",))
