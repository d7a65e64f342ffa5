"""`sandlot run` on a cluster: an image and a layer of this machine, published on demand, and the three yardsticks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster
from sandlot.backends.kubernetes.manifests import CLIENT
from sandlot.tasks.patch import diff_trees
from tests.cluster.applying import applied
from tests.images.build import image

WRONG = "#!/bin/sh\n" + "".join(f"say_{n}() {{ echo wrong; }}\n\n\n\n" for n in (1, 2)) + '"say_$1"\n'
RIGHT = WRONG.replace("wrong", "right")
CHECK = """for n in 1 2; do
  if [ "$(sh answer.sh $n)" = right ]; then echo "ok - says right $n"; else echo "not ok - says right $n"; fi
done
if [ -f answer.sh ]; then echo "ok - is there"; else echo "not ok - is there"; fi
"""


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """One task that needs nothing but a shell."""
    tree = tmp_path / "layer" / "testbed"
    tree.mkdir(parents=True)
    (tree / "answer.sh").write_text(WRONG)
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "check.sh").write_text(CHECK)
    row = {
        "instance_id": "say-right",
        "image": image("busybox"),
        "layers": ["layer"],
        "problem_statement": "It says wrong.",
        "patch": diff_trees({"answer.sh": WRONG.encode()}, {"answer.sh": RIGHT.encode()}),
        "hidden_tests": "hidden",
        "FAIL_TO_PASS": ["says right 1", "says right 2"],
        "PASS_TO_PASS": ["is there"],
        "run": {"script": "sh check.sh", "parser": "tap"},
        "limits": {"test_s": 60.0},
    }
    file = tmp_path / "tasks.jsonl"
    file.write_text(json.dumps(row) + "\n")
    return file


@pytest.mark.parametrize(("agent", "reward"), [("gold", 1), ("none", 0), ("half", 0)])
async def test_yardsticks_score_as_on_one_machine(
    cluster: Cluster, tmp_path: Path, tasks: Path, agent: str, reward: float
) -> None:
    """With the least rights; nothing is lost and nothing is left."""
    async with applied(cluster, tmp_path) as made:
        where = ["--kubernetes", "--kubeconfig", str(made.kubeconfig(CLIENT)), "--registry", cluster.registry]
        words = ["run", str(tasks), "--agent", agent, "--per-task", "2", "--concurrency", "2", "--out", str(tmp_path / "out")]
        command = [sys.executable, "-m", "sandlot.cli.main", *words, *where, "--json"]
        environ = {**os.environ, "SANDLOT_CACHE": str(tmp_path / "cache")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900, env=environ)
        assert done.returncode == 0, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)["report"]
        assert (report["mean_reward"], report["finished"], report["lost"]) == (reward, 2, 0)
        assert report["sandboxes"]["left"] == 0
        with cluster.api() as api:
            assert api.get(f"/api/v1/namespaces/{made.namespace}/pods")["items"] == []
