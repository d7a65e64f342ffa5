"""Clusters come up side by side, and go without a trace whichever way they end."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cluster.components
from cluster import down, kubeconfig, running, state, up
from cluster.components import Component
from cluster.layout import Layout
from cluster.nodes import is_ready
from cluster.options import Options
from cluster.say import Say
from cluster.starting import StartError
from cluster.tools import Tools
from tests.cluster import pods
from tests.cluster.conftest import own_name

pytestmark = pytest.mark.usefixtures("able")

_ROOT = Path(__file__).parents[2]
_NOTHING = down.Left()


def test_two_clusters_run_side_by_side_and_leave_nothing() -> None:
    """Each has its own pods, addresses and files; taking one down does not touch the other."""
    names = [own_name("left"), own_name("right")]
    try:
        layouts = [up.up(up.Wanted(name, fake_nodes=1), Say()).layout for name in names]
        for name in names:
            with running(name).api() as api:
                pods.run(api, "default", "one", image="none", **pods.on_fake_node())
        assert down.down(names[0], Say()) == _NOTHING
        assert down.count(layouts[0]) == _NOTHING
        with running(names[1]).api() as api:
            assert [pod["metadata"]["name"] for pod in api.get("/api/v1/pods")["items"]] == ["one"]
    finally:
        left = [down.down(name, Say()) for name in names]
    assert left == [None, _NOTHING]
    assert down.count(layouts[1]) == _NOTHING


def test_up_again_keeps_a_running_cluster() -> None:
    """The second one changes nothing but the fake nodes that are missing."""
    name = own_name("again")
    try:
        first = up.up(up.Wanted(name), Say())
        second = up.up(up.Wanted(name, fake_nodes=2), Say())
        with running(name).api() as api:
            names = sorted(node["metadata"]["name"] for node in api.get("/api/v1/nodes")["items"])
        assert second.processes == first.processes
        assert names == ["fake-00000", "fake-00001", "sandlot-real"]
    finally:
        assert down.down(name, Say()) == _NOTHING


def test_up_after_a_death_starts_anew() -> None:
    """A cluster that lost a component is not taken for a running one."""
    name = own_name("lame")
    try:
        first = up.up(up.Wanted(name), Say())
        running(name).kill("etcd")
        second = up.up(up.Wanted(name), Say())
        assert second.layout.uid != first.layout.uid
        assert down.count(first.layout).processes == 0
    finally:
        assert down.down(name, Say()) == _NOTHING


@pytest.mark.parametrize(
    "moment", ["certificates and configuration written", "etcd serves", "apiserver serves", "kubelet serves"]
)
def test_an_interrupted_up_leaves_nothing(moment: str) -> None:
    """Whenever it is told to end, it undoes what it began."""
    name = own_name("broken")
    process, layout = _up_until(name, moment)
    process.send_signal(signal.SIGTERM)
    said = process.communicate()[1]
    assert process.returncode != 0, said
    assert down.count(layout) == _NOTHING
    assert state.load(name) is None


def test_down_clears_after_an_up_that_was_killed() -> None:
    """Even when it had no chance to undo anything, what it wrote down and the cgroup are enough."""
    name = own_name("killed")
    process, layout = _up_until(name, "apiserver serves")
    process.kill()
    process.communicate()
    assert down.count(layout).processes > 0
    assert down.down(name, Say()) == _NOTHING
    assert down.count(layout) == _NOTHING


def _up_until(name: str, moment: str) -> tuple["subprocess.Popen[str]", Layout]:
    """An `up` in a process of its own, at the moment when it says this."""
    words = [sys.executable, "-m", "cluster", "up", "--name", name, "--no-merge"]
    process = subprocess.Popen(words, cwd=_ROOT, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    said = ""
    while moment not in said:
        line = process.stderr.readline()
        assert line, f"`up` ended before it said {moment!r}: {said}"
        said += line
    found = state.load(name)
    assert found is not None
    return process, found.layout


def test_a_component_that_ends_is_told_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """And everything that had been started is stopped."""
    name = own_name("ends")
    layouts: list[Layout] = []
    broken = Component("broken", ("/bin/sh", "-c", "echo out of tea >&2; exit 3"), "file:/nonexistent", after=("etcd",))

    def with_broken(layout: Layout, tools: Tools, options: Options) -> tuple[Component, ...]:
        layouts.append(layout)
        return (*cluster.components.components(layout, tools, options), broken)

    monkeypatch.setattr(up, "components", with_broken)
    with pytest.raises(StartError, match=r"broken has ended\n  out of tea"):
        up.up(up.Wanted(name), Say())
    assert [down.count(layout) for layout in layouts] == [_NOTHING]


def test_the_context_comes_into_the_users_kubeconfig_and_goes(tmp_path: Path) -> None:
    """It becomes the current one; what was there stays, also the file itself."""
    file = tmp_path / "config"
    name = own_name("merge")
    try:
        up.up(up.Wanted(name, merge_into=file), Say())
        kubectl = Tools({"": Path(state.load(name).parts["kubernetes"])}).path("kubectl")  # type: ignore[union-attr]
        kubeconfig.add(
            kubectl,
            file,
            {"clusters": [], "users": [], "contexts": [{"name": "mine", "context": {}}], "current-context": "mine"},
        )
        asked = subprocess.run(
            [kubectl, f"--kubeconfig={file}", f"--context=sandlot-{name}", "get", "nodes", "--output=name"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert asked.stdout == "node/sandlot-real\n"
    finally:
        assert down.down(name, Say()) == _NOTHING
    text = file.read_text()
    assert "name: mine" in text
    assert name not in text


def test_a_silent_node_is_lost_when_little_patience_is_asked_for() -> None:
    """The kubelet's death shows as a node that is not ready; fake nodes, which kwok speaks for, stay ready."""
    name = own_name("silent")
    try:
        up.up(up.Wanted(name, fake_nodes=2, options=Options(node_grace_s=20)), Say())
        found = running(name)
        found.kill("kubelet")
        with found.api() as api:

            def ready() -> set[str]:
                return {node["metadata"]["name"] for node in api.get("/api/v1/nodes")["items"] if is_ready(node)}

            pods.until(lambda: ready() == {"fake-00000", "fake-00001"}, "the loss of the real node alone")
            found.start("kubelet")
            pods.until(lambda: "sandlot-real" in ready(), "its return")
    finally:
        assert down.down(name, Say()) == _NOTHING
