"""The main job, end to end: tasks from real releases, three yardsticks, and what must come out of them.

    python examples/demo.py [--out FOLDER] [--per-task N] [--kubernetes [--namespace NAME] [--registry HOST[:PORT]/PATH]]

Every step is a `sandlot` command that is shown before it runs. Stopped and started again it goes on where it was. On a
cluster the same table comes out: tasks are built here, on an image that is made here too, and published to its registry.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import base_image

EXPECTED = {"gold": 1.0, "none": 0.0, "half": 0.0}
RECIPES = Path(__file__).with_name("releases.jsonl")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("demo-out"))
    parser.add_argument("--per-task", type=int, default=4)
    parser.add_argument("--kubernetes", action="store_true", help="run the rollouts in the kubeconfig's current cluster")
    parser.add_argument("--namespace", help="of the sandboxes there")
    parser.add_argument("--registry", help="where images are published to; default: the one that the cluster advertises")
    options = parser.parse_args()
    tasks, image, where = options.out / "tasks", [], []
    if options.kubernetes:
        base = options.out.absolute() / "base.tar"
        base_image.make(base)
        tasks, image = options.out / "tasks-for-clusters", ["--image", f"oci-archive:{base}"]
        named = {"--namespace": options.namespace, "--registry": options.registry}
        where = ["--kubernetes", *(word for option, value in named.items() if value for word in (option, value))]
    _sandlot("tasks", "from-releases", "--list", str(RECIPES), "--out", str(tasks), *image)
    file = tasks / "tasks.jsonl"
    # Other tasks are another run: the folder's name says which these are.
    runs = options.out / f"{'cluster-' * options.kubernetes}run-{hashlib.sha256(file.read_bytes()).hexdigest()[:8]}"
    cores = os.cpu_count() or 1
    reports = {}
    for agent in EXPECTED:
        words = ("run", str(file), "--agent", agent, "--per-task", str(options.per_task), "--out", str(runs / agent))
        reports[agent] = _sandlot(*words, "--concurrency", str(2 * cores), "--judges", str(cores), *where)
    return _compare(reports, wanted=sum(bool(line.strip()) for line in RECIPES.read_text().splitlines()))


def _sandlot(*words: str) -> dict[str, Any]:
    """Run one command; what it says on standard output, as JSON. Exit code 1 is an answer ("no"), others end the demo."""
    print(f"$ sandlot {' '.join(words)}", file=sys.stderr, flush=True)
    command = [sys.executable, "-m", "sandlot.cli.main", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode > 1 or not done.stdout:
        sys.exit(done.returncode or 1)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _compare(answers: dict[str, dict[str, Any]], *, wanted: int) -> int:
    """Print the table; 0 only if it is what it must be, for as many tasks as there are recipes."""
    right = True
    print(f"{'agent':8}{'tasks':>6}{'rollouts':>10}{'reward':>8}{'must be':>9}{'lost':>6}{'left':>6}  report")
    for agent, answer in answers.items():
        report = answer["report"]
        rewards = [row["mean_reward"] for row in report["tasks"]]
        left = report["sandboxes"].get("left")
        mean = report["mean_reward"]
        right &= len(rewards) == wanted and set(rewards) == {EXPECTED[agent]} and report["lost"] == 0 and left == 0
        right &= report["finished"] == report["asked"]
        said = "-" if mean is None else f"{mean:.3g}"
        counts = f"{len(rewards):6}{report['finished']:10}{said:>8}{EXPECTED[agent]:9.0f}{report['lost']:6}{left!s:>6}"
        print(f"{agent:8}{counts}  {Path(answer['out']) / 'report.html'}")
    print("as it must be" if right else "NOT as it must be")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
