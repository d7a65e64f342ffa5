"""Pods of which nobody says anything, no scheduler, no node and no event: only time tells that nobody will. Pure.

A pod that waits in a scheduler's queue looks just like one that no scheduler knows of. What tells them apart is how far the
queue has come: schedulers take pods in the order in which they came, so as long as others of this client are decided on,
the queue moves, and when one that came much later has been, this one is not in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sandlot.backends.kubernetes.objects import SeenPod
from sandlot.errors import BadRequest, NotReady, SandlotError

USUAL: Final = "default-scheduler"
"""What the API server writes into pods that name none."""
GATED: Final = "SchedulingGated"


def unnoticed(pod: SeenPod) -> bool:
    """Neither a scheduler nor a node has written anything into this pod."""
    status = pod.status
    if status.phase not in ("", "Pending") or status.container_statuses or pod.metadata.deletion_timestamp is not None:
        return False
    # The API server itself writes of gates, and what it wrote stays when the last one is gone.
    gated = bool(pod.spec.scheduling_gates)
    return not gated and all(one.reason == GATED for one in status.conditions or ())


@dataclass(slots=True)
class _Progress:
    """Of one scheduler with this client's pods."""

    reached_s: float
    """When the latest of those that it decided on came."""
    heard_s: float
    """When it last decided."""


class Schedulers:
    """What each scheduler did lately for this client's pods. Times are seconds on any clock that does not go back."""

    def __init__(self) -> None:
        self._progress: dict[str, _Progress] = {}
        self._watched_s = 0.0

    def decided(self, name: str, *, came_s: float, now: float) -> None:
        """It has found a place for a pod that came then, or said that there is none."""
        known = self._progress.setdefault(name, _Progress(came_s, now))
        known.reached_s, known.heard_s = max(known.reached_s, came_s), now

    def resumed(self, now: float) -> None:
        """Nobody watched for a while: what was not heard may have been said then."""
        self._watched_s = now

    def heard_of(self, name: str) -> bool:
        """It has decided on a pod of this client's."""
        return name in self._progress

    def silent_s(self, name: str, *, came_s: float, now: float, longest_s: float) -> float:
        """How long nothing has spoken for its ever getting to a pod that came then; `longest_s` is too long."""
        since_s, known = max(came_s, self._watched_s), self._progress.get(name)
        if known is not None and known.reached_s <= came_s + longest_s:
            since_s = max(since_s, known.heard_s)
        return now - since_s


# --- what is said then --------------------------------------------------------------------------------------------------
def no_such_node(node: str) -> SandlotError:
    return BadRequest(f"there is no node {node!r}, to which its spec binds it", hint="see nodeName in PodOptions.extra")


def not_taken(node: str, seconds: float) -> SandlotError:
    hint = "is there such a node, and does its kubelet run? (nodeName in PodOptions.extra)"
    return NotReady(f"node {node!r}, to which its spec binds it, has not taken it up for {seconds:.0f} s", hint=hint)


def not_scheduled(scheduler: str, seconds: float) -> SandlotError:
    said = f"scheduler {scheduler!r} has said nothing of it for {seconds:.0f} s"
    if scheduler == USUAL:
        held = "does kube-scheduler run? Resource claims that do not exist hold a pod back in silence"
        return NotReady(said, hint=f"{held}; where its queue is long, raise ClusterOptions.scheduler_silence_s")
    return NotReady(said, hint="is there one of that name? (PodOptions.scheduler)")
