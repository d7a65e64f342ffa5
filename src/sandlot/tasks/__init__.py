"""Tasks: what a row of a data set means, and how to tell whether it was solved.

    task, rows, swe            a row -> `Task`: environment, problem, known answer, deciding tests
    patch, place               unified diffs, and putting them and the hidden tests into a sandbox
    protect, change            what of an agent's change may reach the judge
    examine, records, printed  one run of the tests, and what can be believed of it
    controls, verdict          tests with a known ending; exact test ids -> reward
    releases/                  tasks made from two releases of a project
    inside/                    what runs in the sandbox

Who leases sandboxes and when is no matter of this package: `rollout` decides that.
"""

from sandlot.tasks.swe import read_tasks
from sandlot.tasks.task import HiddenTests, PrintedRun, PytestRun, Task
from sandlot.tasks.verdict import Verdict

__all__ = ["HiddenTests", "PrintedRun", "PytestRun", "Task", "Verdict", "read_tasks"]
