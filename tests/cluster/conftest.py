"""A running cluster for tests: the one that `SANDLOT_TEST_CLUSTER` names, or one of this session's own."""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from cluster import Cluster, build, down, images, parts, running, state, up
from cluster.options import USUAL, Options
from cluster.processes import Identity, identify
from cluster.say import Say

_HERE = Path(__file__).parent
_FAKE_NODES = 4
_FULL = os.environ.get("SANDLOT_TEST_FULL") == "1"
WANTED = Options(runtimes=("gvisor",)) if _FULL else USUAL
_MOST = Options(runtimes=("gvisor",), policies=True) if _FULL else USUAL
"""What any cluster of these tests has, with those that bring up one of their own."""
_BUILD_S = 1800  # `make test` builds first; where somebody else runs the tests, the first of them may wait for it
_TEST_S = 900  # the longest patience of a test and of its end, on a machine that is as busy as can be


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that bring up a cluster may have to wait for the build, and those for `make test-full` take long."""
    built = build.is_built(parts.parts(_MOST))
    for item in items:
        if _HERE in item.path.parents and "able" in getattr(item, "fixturenames", ()):
            is_full = item.get_closest_marker("full") is not None
            item.add_marker(pytest.mark.timeout(_TEST_S if built and not is_full else _BUILD_S))
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def able() -> None:
    """Whether this machine can have a cluster: it makes cgroups, namespaces and a bridge, and builds its parts."""
    if os.geteuid() != 0:
        pytest.skip("a cluster needs root")
    if (lacking := build.obstacle(parts.parts(_MOST))) is not None:
        pytest.skip(f"a cluster cannot be built: {lacking}")


@pytest.fixture(scope="session")
def cluster(able: None) -> Iterator[Cluster]:
    """A cluster with the real node and at least four fake ones; other tests, and perhaps people, use it too."""
    named = os.environ.get("SANDLOT_TEST_CLUSTER")
    if named:
        found = running(named)
        assert set(WANTED.runtimes) <= set(found.runtimes), f"{named} was brought up without --runtimes {WANTED.runtimes[0]}"
        found.add_fake_nodes(_FAKE_NODES)
        yield found
        return
    _remove_abandoned()
    name = own_name("tests")
    up.up(up.Wanted(name, _FAKE_NODES, WANTED), Say())
    yield running(name)
    assert not down.down(name, Say()), "the cluster left something behind"


def own_name(word: str) -> str:
    """A cluster's name that says which process it belongs to."""
    me = identify(os.getpid())
    assert me is not None
    return f"{word}-{me.pid}-{me.started}"


def _remove_abandoned() -> None:
    """Clusters of sessions that were killed."""
    for name in state.names():
        match = re.fullmatch(r"[a-z]+-(\d+)-(\d+)", name)
        if match and not Identity(int(match[1]), int(match[2])).alive():
            down.down(name, Say())


@dataclass(frozen=True)
class TestImages:
    """Full names of images in the cluster's registry."""

    __test__ = False
    busybox: str
    tool: str
    """Holds one program, `/tool`, that prints `tool works`; no shell."""


@pytest.fixture(scope="session")
def test_images(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> TestImages:
    """Made here and pushed, so that every use of one is a real pull."""
    top = tmp_path_factory.mktemp("images")
    commands = {f"bin/{name}": "busybox" for name in ("sh", "sleep", "cat", "id", "nc", "ls")}
    busybox = images.make(top / "busybox", {"bin/busybox": Path("/bin/busybox")}, links=commands)
    tool = images.make(top / "tool", {"tool": b"#!/bin/sh\necho tool works\n"})
    return TestImages(cluster.push(busybox, "tests/busybox:1"), cluster.push(tool, "tests/tool:1"))
