"""Runs the shared suite against the local backend in each id mode, and holds the list of differences."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandlot.backends.local import LocalBackend
from sandlot.provider import Provider
from sandlot.sandbox import Sandbox
from sandlot.spec import Spec
from sandlot.testing.conformance import MakeBox
from tests.conformance.modes import Mode, as_root, as_test_user
from tests.images.build import image

MODES = ("root", "subuid", "single")

_NO_OTHER_USERS = "one id: there is nobody else to become, by design of the mode"

DIFFERENCES: dict[str, dict[str, str]] = {
    "root": {},
    "subuid": {},
    "single": {},
}
"""mode -> test name -> why it differs there. At most five a mode, none about output, time limits or files."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A listed difference must really differ: it is expected to fail, and a pass is an error."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        name = callspec.params.get("mode") if callspec else None
        reason = DIFFERENCES.get(name or "", {}).get(getattr(item, "originalname", item.name))
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(scope="session", params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[Mode]:
    """One id mode; its directories live as long as the tests that use it."""
    if os.geteuid() != 0:
        pytest.fail("these tests start hosts as several users and therefore need root")
    with tempfile.TemporaryDirectory(prefix="sandlot-conformance-", dir="/var/tmp") as scratch:
        Path(scratch).chmod(0o755)
        folder = Path(scratch) / request.param
        if request.param == "root":
            yield as_root(folder)
        else:
            with as_test_user(request.param, folder) as made:
                yield made


@pytest.fixture
async def provider(mode: Mode) -> AsyncIterator[Provider]:
    """A provider in this mode; when the test ends it must leave nothing."""
    backend = LocalBackend(
        daemon=mode.daemon, runtime=mode.runtime, cache=mode.cache, mode=mode.requested, launcher=mode.launcher
    )
    async with Provider(backend) as provider:
        yield provider
        closing = await provider.aclose()
    assert closing.left == ()


@pytest.fixture
async def make_box(provider: Provider) -> AsyncIterator[MakeBox]:
    """See `sandlot.testing.conformance`."""
    async with contextlib.AsyncExitStack() as stack:

        async def make(image_name: str = "busybox", /, **fields: object) -> Sandbox:
            reference = image_name if ":" in image_name else image(image_name)
            spec = Spec(image=reference, **fields)  # type: ignore[arg-type]
            return await stack.enter_async_context(await provider.create(spec))

        yield make
