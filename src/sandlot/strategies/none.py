"""Keep nothing: a sandbox that nobody waits for goes, and each request creates its own."""

from __future__ import annotations

from sandlot.strategies.base import Plan, View


def none(view: View) -> Plan:
    """The least memory, the longest wait."""
    return Plan(evict=tuple(spec for spec, holding in view.holdings.items() for _ in range(holding.idle)))
