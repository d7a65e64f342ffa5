"""Nodes on which a start has just failed: what is tried again is tried elsewhere, if there is an elsewhere. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, Final, cast

from sandlot.podoptions import thawed

Json = dict[str, Any]

SUSPECT_S: Final = 120.0  # a kubelet's pauses between tries grow to 300 s; a cluster must not be avoided for long
MOST: Final = 8  # more than that, and it is the cluster that is at fault, not its nodes
_WEIGHT: Final = 100  # the highest there is


class Suspects:
    """The latest of them. Times are seconds on any clock that does not go back."""

    def __init__(self) -> None:
        self._until_s: OrderedDict[str, float] = OrderedDict()

    def failed(self, node: str, now: float) -> None:
        """A sandbox did not start there, and not by its own fault."""
        self._until_s.pop(node, None)
        self._until_s[node] = now + SUSPECT_S
        if len(self._until_s) > MOST:
            self._until_s.popitem(last=False)

    def started(self, node: str) -> None:
        """One started there: it is trusted again."""
        self._until_s.pop(node, None)

    def names(self, now: float) -> tuple[str, ...]:
        """Those to avoid now, oldest first."""
        while self._until_s and next(iter(self._until_s.values())) <= now:
            self._until_s.popitem(last=False)
        return tuple(self._until_s)


def avoiding(affinity: Mapping[str, object], nodes: tuple[str, ...]) -> Json:
    """This pod affinity, and rather none of these nodes. A wish, not a condition: with no other node they will do."""
    own = cast(Json, thawed(affinity))
    if not nodes:
        return own
    # The API takes one name in each requirement on a node's fields; all of one term must hold.
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    by_node = dict(own.get("nodeAffinity") or {})
    wishes = "preferredDuringSchedulingIgnoredDuringExecution"
    by_node[wishes] = [*(by_node.get(wishes) or ()), {"weight": _WEIGHT, "preference": {"matchFields": fields}}]
    return {**own, "nodeAffinity": by_node}
