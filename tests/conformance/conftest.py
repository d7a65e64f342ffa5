"""Runs the shared suite against the local backend in each id mode, and holds the list of differences."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that a mode cannot do, and the checks that show it."""

    reason: str
    checks: tuple[str, ...]


DIFFERENCES: dict[str, tuple[Difference, ...]] = {
    "root": (),
    "subuid": (),
    "single": (
        Difference(
            "one id: there is nobody else to become, and no image whose user is somebody else (UserUnsupported)",
            (
                "test_every_image_with_a_shell_runs_scripts[single-nonroot]",
                "test_image_user_without_an_entry_can_work[single]",
                "test_users_by_name_and_number[single-nobody-65534-65534-/nonexistent]",
                "test_users_by_name_and_number[single-1234-1234-0-/0]",
                "test_users_by_name_and_number[single-1234-1234-0-/1]",
                "test_users_by_name_and_number[single-nobody:www-data-65534-33-/nonexistent]",
                "test_users_by_name_and_number[single-1234:4321-1234-4321-/]",
                "test_supplementary_groups_come_from_the_image[single]",
                "test_other_users_are_kept_out_of_root_files[single]",
                "test_files_act_with_the_rights_of_their_user[single]",
                "test_kill_all_from_inside_spares_the_daemon[single-nobody]",
            ),
        ),
        Difference(
            "one id: useradd and chown to anybody else are refused by the kernel (EINVAL)",
            ("test_user_management_works_as_in_a_container[single]",),
        ),
    ),
}
"""At most five a mode, none about output, time limits or files."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A listed difference must really differ: it is expected to fail, and a pass is an error."""
    listed = {check: one.reason for differences in DIFFERENCES.values() for one in differences for check in one.checks}
    for item in items:
        reason = listed.get(item.name)
        if reason is not None:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


@pytest.fixture(scope="session", params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[Mode]:
    """One id mode; its directories live as long as the tests that use it."""
    if os.geteuid() != 0:
        pytest.fail("these tests start hosts as several users and therefore need root")
    with tempfile.TemporaryDirectory(
        prefix="sandlot-conformance-", dir=os.environ.get("SANDLOT_TEST_SCRATCH", "/var/tmp")
    ) as scratch:
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
