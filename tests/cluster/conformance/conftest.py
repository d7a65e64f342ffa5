"""Runs the shared suite against pods, and holds the list of differences.

Every check runs once, with links by dial-in and the daemon from an image volume; `SANDLOT_TEST_FULL=1` (`make test-full`) runs
it in every way that links and the daemon can come.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

import pytest
import pytest_asyncio

import sandlot
from cluster import Cluster
from sandlot.backends.kubernetes import ClusterOptions
from sandlot.backends.kubernetes.options import Connect, Delivery
from sandlot.testing.conformance import MakeBox
from tests.cluster.pods import namespace
from tests.images.build import image


@dataclass(frozen=True, slots=True)
class Ways:
    """One way for links, and one for the daemon."""

    connect: Connect
    delivery: Delivery

    def __str__(self) -> str:
        return f"{self.connect}+{self.delivery}"


FIRST: Final = Ways("dial-in", "image")
OTHERS: Final = (Ways("dial-out", "init"),)


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that pods cannot do, and the checks that show it."""

    reason: str
    checks: tuple[str, ...]


DIFFERENCES: Final[tuple[Difference, ...]] = ()
"""At most five, none about output, time limits or files."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Each check in one way, or in all."""
    if "ways" in metafunc.fixturenames:
        wanted = (FIRST, *OTHERS) if os.environ.get("SANDLOT_TEST_FULL") else (FIRST,)
        metafunc.parametrize("ways", wanted, ids=str, scope="package")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A listed difference must really differ: it is expected to fail, and a pass is an error."""
    listed = {check: one.reason for one in DIFFERENCES for check in one.checks}
    for item in items:
        reason = listed.get(getattr(item, "originalname", item.name)) or listed.get(item.name.replace(f"[{FIRST}-", "["))
        if reason is not None and "cluster/conformance" in item.nodeid:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest_asyncio.fixture(scope="package", loop_scope="package")
async def provider(cluster: Cluster, ways: Ways) -> AsyncIterator[sandlot.Provider]:
    """One for all checks; when they have ended it must leave nothing."""
    with cluster.api() as api, namespace(api) as name:
        options = ClusterOptions(
            namespace=name,
            connect=ways.connect,
            delivery=ways.delivery,
            advertise=cluster.gateway if ways.connect == "dial-out" else None,
        )
        async with sandlot.kubernetes(
            kubeconfig=cluster.kubeconfig, registry=f"{cluster.registry}/sandlot", options=options
        ) as one:
            yield one
            closing = await one.aclose()
        assert closing.left == ()
        assert api.get(f"/api/v1/namespaces/{name}/pods")["items"] == []


@pytest_asyncio.fixture(loop_scope="package")
async def make_box(cluster: Cluster, provider: sandlot.Provider) -> AsyncIterator[MakeBox]:
    """See `sandlot.testing.conformance`. Pods cannot limit processes, so the suite's limits are asked for as best effort."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(image_name: str = "busybox", /, **fields: object) -> sandlot.Sandbox:
            reference = image_name if ":" in image_name else image(image_name)
            pod = sandlot.PodOptions(node_selector={"kubernetes.io/hostname": cluster.real_node})
            wanted = {"limits": "best-effort", "pod": pod, **fields}
            spec = sandlot.Spec(image=reference, **wanted)  # type: ignore[arg-type]
            return await stack.enter_async_context(await provider.create(spec))

        yield make
