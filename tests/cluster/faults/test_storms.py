"""Between a client and the API server everything goes wrong at once: what was asked for comes all the same, and goes."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field

import sandlot
from cluster import Cluster
from tests.cluster.faults.census import census
from tests.cluster.faults.clients import options
from tests.cluster.faults.proxy import Act, Call, LoseAnswer, Proxy, Refuse, Stale

COUNT = 8


@dataclass(slots=True)
class Storm:
    """Three POSTs of pods in ten are done but not answered, others are throttled or fail; so do the first deletions."""

    did: Counter[str] = field(default_factory=Counter)
    _posts: int = 0
    _deletes: int = 0

    def __call__(self, call: Call) -> Act:
        if call.is_watch and call.path.endswith("/pods") and not self.did["stale"]:
            return self._do("stale", Stale())
        if call.makes_pod:
            self._posts += 1
            return self._on_post(self._posts % 10)
        if call.deletes:
            self._deletes += 1
            return self._do("delete refused", Refuse(500)) if self._deletes <= COUNT else None
        return None

    def _on_post(self, turn: int) -> Act:
        if turn in (1, 4, 7):
            return self._do("answer lost", LoseAnswer())
        if turn in (2, 5):
            return self._do("throttled", Refuse(429, retry_after_s=1, reason="TooManyRequests"))
        return self._do("failed", Refuse(500)) if turn in (3, 6) else None

    def _do(self, name: str, act: Act) -> Act:
        self.did[name] += 1
        return act


async def test_burst_through_a_storm_loses_nothing_and_leaves_nothing(
    cluster: Cluster, space: str, image: str, proxy: Proxy
) -> None:
    """Every sandbox becomes usable once and by itself; each refusal is counted by its kind, none reaches the caller."""
    proxy.rule = storm = Storm()
    async with sandlot.kubernetes(options=options(space), kubeconfig=proxy.kubeconfig) as provider:
        creating = [asyncio.create_task(provider.create(sandlot.Spec(image=image))) for _ in range(COUNT)]
        await asyncio.wait(creating, return_when=asyncio.FIRST_COMPLETED)
        cut = proxy.cut_watches()
        boxes = await asyncio.gather(*creating)
        for box in boxes:
            await box.write("/tmp/name", box.name.encode())
        names = [(await box.exec("cat /tmp/name")).stdout for box in boxes]
        assert names == [box.name for box in boxes]
        assert sorted(names) == sorted(set(census(cluster, space).pods) & set(names))
    assert cut >= 1
    assert {"stale", "answer lost", "throttled", "failed", "delete refused"} <= set(storm.did)
    assert provider.closing is not None
    assert provider.closing.left == ()
    assert provider.closing.created == provider.closing.gone >= COUNT
    assert set(provider.statistics().failures) <= {"throttled", "infrastructure", "transport"}
    assert 1 <= provider.statistics().failures["throttled"] <= storm.did["throttled"]
    found = census(cluster, space)
    assert (found.pods, found.leases) == ((), ())
