"""Keep a fixed number of each spec warm."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from sandlot.errors import BadRequest
from sandlot.spec import Spec
from sandlot.strategies.base import Holding, Plan, Strategy, View


def fixed(counts: Mapping[Spec, int]) -> Strategy:
    """Parked sandboxes of each spec: `counts`, beside those in use. Specs that are not named are not kept.

    Raises:
        BadRequest: a count is negative.
    """
    wanted = MappingProxyType(dict(counts))
    for spec, n in wanted.items():
        if n < 0:
            raise BadRequest(f"{n} warm sandboxes of {spec.image} cannot be kept")

    def plan(view: View) -> Plan:
        evict: list[Spec] = []
        warm: list[Spec] = []
        for spec, holding in view.holdings.items():
            evict += [spec] * min(holding.idle, holding.idle + holding.coming - wanted.get(spec, 0))
        for spec, n in wanted.items():
            holding = view.holdings.get(spec, Holding())
            warm += [spec] * (n - holding.idle - holding.coming)
        return Plan(tuple(evict), tuple(warm))

    return plan
