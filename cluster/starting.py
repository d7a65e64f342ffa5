"""Starts components and waits until they serve; a death on the way is told with the end of its log."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cluster import cgroups, processes
from cluster.components import Component, environment
from cluster.layout import Layout
from cluster.processes import Identity
from cluster.readiness import answers, wait_until
from cluster.say import Say
from cluster.state import State
from cluster.tools import Tools

_SERVING_S = 180.0
_TAIL_LINES = 15


class StartError(Exception):
    """A component ended or never served; the text has the end of its log."""


@dataclass
class Starter:
    """Starts the components of one cluster, each as soon as those it needs do serve."""

    state: State
    tools: Tools
    say: Say
    watched: dict[str, Identity] = field(default_factory=dict)
    """Whose death ends the waiting: what this has started, and what it was given."""

    def start_all(self, wanted: Sequence[Component]) -> None:
        """Start and wait for all of them.

        Raises:
            StartError: one ended, or did not serve within 180 s.
        """
        waiting, starting, serving = list(wanted), list[Component](), set[str]()

        def step() -> bool:
            for one in [one for one in waiting if serving.issuperset(one.after)]:
                waiting.remove(one)
                self.start(one)
                starting.append(one)
            for one in [one for one in starting if answers(one.answers)]:
                starting.remove(one)
                serving.add(one.name)
                self.say(f"{one.name} serves")
            return not waiting and not starting

        if not wait_until(step, timeout_s=_SERVING_S, check=self.check):
            late = starting[0]
            raise StartError(f"{late.name} does not answer at {late.answers}\n{tail(self.state.layout.log(late.name))}")

    def start(self, one: Component) -> None:
        """Start it and write down that it was."""
        layout = self.state.layout
        inside = () if not one.in_node else ("nsenter", f"--mount=/proc/{self._holder().pid}/ns/mnt", "--")
        identity = processes.spawn(
            [*inside, *one.argv],
            environment(layout, self.tools),
            log=layout.log(one.name),
            member_of=[cgroups.components_home(layout.cgroup)],
        )
        self.watched[one.name] = identity
        self.state = self.state.with_process(one.name, identity)
        self.state.save()

    def _holder(self) -> Identity:
        """A process in the node's mount namespace: whoever holds it, should the holder itself be gone."""
        for name in ("node", "containerd", "kubelet"):
            found = self.state.processes.get(name)
            if found is not None and found.alive():
                return found
        raise StartError("the node's mount namespace is gone: take the cluster down and up again")

    def check(self) -> None:
        """Raises StartError when a component has ended."""
        for name, identity in self.watched.items():
            if not identity.alive():
                raise StartError(f"{name} has ended\n{tail(self.state.layout.log(name))}")


def tail(log: Path, lines: int = _TAIL_LINES) -> str:
    """The last lines of a log, set in by two blanks."""
    try:
        text = log.read_text(errors="replace")
    except FileNotFoundError:
        return "  (no log)"
    return "\n".join(f"  {line[:400]}" for line in text.splitlines()[-lines:]) or "  (its log is empty)"


def make_directories(layout: Layout) -> None:
    """What the components expect to exist."""
    for path in (layout.config, layout.logs, layout.top / "registry", layout.top / "containerd" / "root"):
        path.mkdir(parents=True, exist_ok=True)
    for name in ("kubelet", "cni", "log"):
        (layout.node / name).mkdir(parents=True, exist_ok=True)
    for path in (Path("/var/lib/kubelet"), Path("/var/lib/cni")):
        path.mkdir(parents=True, exist_ok=True)
