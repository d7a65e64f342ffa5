"""One host for all tests of a module, and sandboxes that are destroyed after their test."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.daemon import outside
from tests.daemon.wire import Box, Host

MakeBox = Callable[..., Box]
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Path]:
    """A runtime directory of the test's own."""
    with tempfile.TemporaryDirectory(prefix="sandlot-daemon-", dir="/var/tmp") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="module")
def host(runtime: Path) -> Iterator[Host]:
    """A host as root. When it is left, nothing of it may be left."""
    if os.geteuid() != 0:
        pytest.fail("these tests look at sandboxes from outside and therefore need root")
    host = Host(runtime)
    assert host.ready["t"] == "ready", host.ready
    yield host
    assert host.close() == 0
    assert outside.cgroups(host.ready["host"]) == []
    assert not Path(os.fsdecode(host.ready["socket"])).parent.exists()


@pytest.fixture
def make(host: Host) -> Iterator[MakeBox]:
    """Makes sandboxes with names of their own."""
    boxes: list[Box] = []

    def make_box(**fields: Any) -> Box:
        box = host.create(f"box-{next(_numbers)}", **fields)
        boxes.append(box)
        return box

    yield make_box
    for box in boxes:
        box.close()
        host.destroy(box.name)


@pytest.fixture
def box(make: MakeBox) -> Box:
    """One sandbox of the host image."""
    return make()
