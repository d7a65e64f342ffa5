"""How often the API server was written to, in its own words: the counter `apiserver_request_total` of its metrics page.

The counter names verb, resource and subresource, and not the client. Told apart by who does what:

    ours                                   everybody else's
    POST, DELETE, DELETECOLLECTION pods    POST pods/binding (the scheduler, where no client binds)
    any write of a Lease                   PATCH, PUT pods/status (kubelets, and what plays them)
                                           POST, PATCH events (scheduler, kubelets)

This counts too much rather than too little: the Leases of kubelets and of the control plane's own elections are charged to
us, and so are the DELETEs by which a kubelet ends a pod that was deleted with a grace period. Requests that were answered
404 changed nothing and are left out: nodes that run nothing delete each pod that is gone once more.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

_LINE: Final = re.compile(r"^apiserver_request_total\{([^}]*)\} (\S+)", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')
_WRITES: Final = frozenset({"POST", "PUT", "PATCH", "APPLY", "DELETE", "DELETECOLLECTION"})
_OF_PODS: Final = frozenset({"POST", "DELETE", "DELETECOLLECTION"})


class Kind(NamedTuple):
    """One kind of request."""

    verb: str
    resource: str
    subresource: str

    @property
    def is_ours(self) -> bool:
        """Whether clients do this; see the top of the file."""
        match self.resource, self.subresource:
            case "pods", "":
                return self.verb in _OF_PODS
            case "leases", _:
                return True
            case _:
                return False

    def __str__(self) -> str:
        return f"{self.verb} {self.resource}" + (f"/{self.subresource}" if self.subresource else "")


def writes(page: str) -> Counter[Kind]:
    """The writes counted on a metrics page, whatever they were answered but 404."""
    found: Counter[Kind] = Counter()
    for kind, code, count in _requests(page):
        if kind.verb in _WRITES and code != "404":
            found[kind] += count
    return found


def between(before: Mapping[Kind, int], after: Mapping[Kind, int]) -> Counter[Kind]:
    """What was written between two looks."""
    return Counter({kind: grown for kind, count in after.items() if (grown := count - before.get(kind, 0)) > 0})


def bindings(counted: Mapping[Kind, int]) -> int:
    """How many pods were bound to nodes, by whomever."""
    return counted.get(Kind("POST", "pods", "binding"), 0)


def ours(counted: Mapping[Kind, int]) -> int:
    """How many of these writes are ours."""
    return sum(count for kind, count in counted.items() if kind.is_ours)


def _requests(page: str) -> Iterator[tuple[Kind, str, int]]:
    """Kind, status and count of each line."""
    for labels, value in _LINE.findall(page):
        named = dict(_LABEL.findall(labels))
        kind = Kind(named.get("verb", ""), named.get("resource", ""), named.get("subresource", ""))
        yield kind, named.get("code", ""), int(float(value))
