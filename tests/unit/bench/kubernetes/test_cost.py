"""What `sandlot bench client` makes of two outcomes."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.bench.kubernetes.cost import Client, rows
from sandlot.bench.kubernetes.plans import Harvest, Outcome
from sandlot.bench.kubernetes.steps import COMMAND, IDLE, MADE


def outcome(cpu_s: float, peak_kib: int, steps: dict[str, float]) -> Outcome:
    harvest = Harvest(moments_s=[1.0] * 100, failures={}, cpu_s=steps)
    return Outcome(asked=100, began_s=0.0, harvest=harvest, cpu_s=cpu_s, peak_kib=peak_kib, base_kib=51_200)


def test_a_life_is_all_steps_but_idleness() -> None:
    """What waiting costs depends on how long it was asked for, and is told by itself, per keepalive."""
    ours = outcome(0.5, 204_800, {"open": 0.02, MADE: 0.2, COMMAND: 0.05, IDLE: 0.13})
    client = Client(sandboxes=100, connect="dial-in", idle_s=20.0, fleet=Path("fleet"))
    found = {row.case: row for row in rows(client, ours, outcome(0.1, 102_400, {}))}
    life = found["CPU each over its life"]
    assert [life.p50, life.floor, life.ratio] == pytest.approx([3.7, 1.0, 3.7])
    assert found[f"of it: {MADE}"].p50 == pytest.approx(2.0)
    assert found["of it: deleted, and the provider closed"].p50 == pytest.approx(1.0)
    assert found["CPU each per 10 s of doing nothing"].p50 == pytest.approx(0.65)
    assert found["resident, all of it, at its highest"].p50 == 200.0
