"""`sandlot doctor --kubernetes`: what was found in a cluster, and real sandboxes by every way when that is asked for."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Final

from sandlot.backends.kubernetes.images import PublishedImages
from sandlot.backends.kubernetes.preflight import Facts, Finding, Tried, choose_delivery, gather, judge
from sandlot.backends.kubernetes.preflight.remembering import Memory
from sandlot.backends.local.runtime import cache_dir
from sandlot.cli.kubernetes import Connect, Delivery, Where
from sandlot.cli.notices import show_notices
from sandlot.cli.output import print_json, print_table, say
from sandlot.cli.publishing import show_publishing
from sandlot.cli.running import run
from sandlot.errors import SandlotError
from sandlot.policy import Settings
from sandlot.spec import Spec

READY_S: Final = 60.0  # for one tried sandbox: a first pull and a slow node
_ONCE: Final = Settings(attempts=1, create_timeout_s=60.0)
_WAYS: Final[tuple[Connect, ...]] = ("dial-out", "dial-in", "exec-bridge")


def examine(where: Where, *, probe: bool, as_json: bool) -> int:
    """Print what was found. 0: sandboxes can be had, as far as is known; 3: something blocks them."""
    facts = run(_look(where, probe=probe))
    findings = judge(facts)
    if as_json:
        print_json({"server": facts.server, "namespace": facts.namespace, "findings": [asdict(one) for one in findings]})
    else:
        _show(findings)
    return 3 if any(one.level == "blocks" for one in findings) else 0


def _show(findings: Iterable[Finding]) -> None:
    rows: list[tuple[str, str, str]] = []
    for one in findings:
        rows.append((one.level, one.what, one.found))
        rows += [("", "", f"{name}: {text}") for name, text in (("cost", one.cost), ("remedy", one.remedy)) if text]
    print_table(("", "WHAT", "FOUND"), rows)


async def _look(where: Where, *, probe: bool) -> Facts:
    memory = Memory(cache_dir() / "clusters")
    async with where.api() as (api, namespace):
        server = api.credentials.server
        facts = await gather(api, namespace, tried=memory.recall(server, namespace))
        daemon = where.daemon_image
        if probe and daemon is None and where.delivery != "hostpath":
            images = PublishedImages(where.registry, cache_dir(), show_publishing(), notice=show_notices())
            await images.start(api)
            try:
                daemon = await images.daemon()
            finally:
                await images.aclose()
    if not probe:
        return facts
    tried = await _try_all(replace(where, namespace=namespace, daemon_image=daemon), facts)
    memory.keep(server, namespace, tried)
    return replace(facts, tried=tried)


async def _try_all(where: Where, facts: Facts) -> tuple[Tried, ...]:
    """One sandbox by each way; if none works with the delivery that should, one with an init container, by each."""
    chosen = choose_delivery(facts.version, facts.nodes).value if where.delivery == "auto" else where.delivery
    deliveries: list[Delivery] = [chosen]
    if where.delivery == "auto" and chosen != "init":
        deliveries.append("init")
    ways = _WAYS if where.connect == "auto" else (where.connect,)
    tried: list[Tried] = []
    for delivery in deliveries:
        tried += [await _try(replace(where, connect=way, delivery=delivery)) for way in ways]
        if any(one.works for one in tried):
            break
    return tuple(tried)


async def _try(where: Where) -> Tried:
    """Make a sandbox from the daemon's own image, which nodes can surely pull; its first command is the proof."""
    say(f"trying a sandbox by {where.connect}, {where.delivery}")
    began = time.perf_counter()
    try:
        async with where.provider(_ONCE) as provider:
            began = time.perf_counter()
            spec = Spec(image=where.daemon_image or "busybox", limits="best-effort")
            async with await provider.create(spec, ready_timeout_s=READY_S):
                took_s = time.perf_counter() - began
    except SandlotError as error:
        return Tried(where.connect, where.delivery, works=False, problem=str(error))
    return Tried(where.connect, where.delivery, works=True, seconds=round(took_s, 3))
