"""The pieces that decide something on their own: no cluster is needed."""

import itertools
import os
import signal
import socket
import threading
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest

from cluster import build, images, kubeconfig, nodes, parts, readiness
from cluster.layout import SLOTS, Layout
from cluster.options import Options
from cluster.processes import Identity, identify


def _layouts() -> list[Layout]:
    return [Layout(f"c{slot}", slot, f"{slot:012x}", Path("/nowhere")) for slot in range(SLOTS)]


def test_no_two_clusters_share_a_number() -> None:
    """Ports, addresses and bridges of all slots are apart."""
    for one, other in itertools.combinations(_layouts(), 2):
        assert not set(one.ports) & set(other.ports)
        assert one.bridge != other.bridge
        for mine, theirs in itertools.product(_networks(one), _networks(other)):
            assert not mine.overlaps(theirs)


def _networks(layout: Layout) -> list[IPv4Network]:
    return [layout.pods, layout.services, layout.fake_pods]


def test_all_addresses_stay_on_this_machine() -> None:
    """Real pods have benchmark addresses, which no network routes; fake ones loopback addresses."""
    for layout in _layouts():
        assert layout.pods.subnet_of(IPv4Network("198.18.0.0/15"))
        assert layout.services.subnet_of(IPv4Network("198.18.0.0/15"))
        assert layout.fake_pods.subnet_of(IPv4Network("127.0.0.0/8"))
        assert not layout.fake_pods.overlaps(IPv4Network("127.0.0.0/16"))


def test_a_process_with_the_pid_of_another_is_not_signalled() -> None:
    """The start time tells them apart: were it only the pid, this test would be ended."""
    me = identify(os.getpid())
    assert me is not None
    earlier = Identity(me.pid, me.started - 1)
    assert me.alive()
    assert not earlier.alive()
    assert not earlier.send(signal.SIGKILL)


def _entries(*names: str, current: str) -> dict[str, Any]:
    return {
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}"}} for name in names],
        "users": [{"name": name, "user": {}} for name in names],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}} for name in names],
        "current-context": current,
    }


def test_a_merged_context_takes_the_place_of_its_former_self_alone() -> None:
    """Other entries and settings stay as they are, and an older one of the same name goes."""
    old = _entries("work", "sandlot-a", current="work") | {"preferences": {"colors": True}}
    new = _entries("sandlot-a", current="sandlot-a")
    new["clusters"][0]["cluster"]["server"] = "https://new"
    found = kubeconfig.merged(old, new)
    assert [one["name"] for one in found["clusters"]] == ["work", "sandlot-a"]
    assert found["clusters"][1]["cluster"]["server"] == "https://new"
    assert found["current-context"] == "sandlot-a"
    assert found["preferences"] == {"colors": True}
    assert kubeconfig.merged({}, new)["current-context"] == "sandlot-a"


def test_a_context_that_goes_is_current_no_more() -> None:
    """Nor is another one made current in its place; one that is current anyway stays."""
    both = _entries("work", "sandlot-a", current="sandlot-a")
    assert kubeconfig.without(both, "sandlot-a") == _entries("work", current="")
    assert kubeconfig.without(both, "work") == _entries("sandlot-a", current="sandlot-a")


def test_what_was_current_before_is_current_again() -> None:
    """The latest of those that are still there; what somebody chose meanwhile stays."""
    both = {**_entries("work", "sandlot-a", current="sandlot-a")}
    assert kubeconfig.without(both, "sandlot-a", ("sandlot-gone", "work"))["current-context"] == "work"
    assert kubeconfig.without(both, "sandlot-a", ("sandlot-gone",))["current-context"] == ""
    assert kubeconfig.without({**both, "current-context": "other"}, "sandlot-a", ("work",))["current-context"] == "other"


def test_the_users_kubeconfig_is_the_one_kubectl_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several the first that exists, else the last; with none named, the one in the home directory."""
    first, last = tmp_path / "first", tmp_path / "last"
    monkeypatch.setenv("KUBECONFIG", f"{first}:{last}")
    assert kubeconfig.users_file() == last
    first.touch()
    assert kubeconfig.users_file() == first
    monkeypatch.delenv("KUBECONFIG")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert kubeconfig.users_file() == tmp_path / ".kube" / "config"


def test_a_part_is_built_anew_when_what_it_is_built_from_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its place in the cache follows from the module files and from the way it is built."""
    monkeypatch.setattr(parts, "GO", tmp_path)
    (tmp_path / "thing").mkdir()
    module = tmp_path / "thing" / "go.mod"
    module.write_text("module one\n")
    first = build.fingerprint(parts.GoPart("thing"))
    assert build.fingerprint(parts.GoPart("thing")) == first
    assert build.fingerprint(parts.GoPart("thing", tags="extra")) != first
    module.write_text("module two\n")
    assert build.fingerprint(parts.GoPart("thing")) != first


def test_options_name_the_parts_that_they_need() -> None:
    """Nothing is built for an option that is not asked for."""
    usual = [part.name for part in parts.parts(Options())]
    assert "gvisor" not in usual
    assert "policies" not in usual
    assert [part.name for part in parts.parts(Options(("gvisor",), policies=True))] == [*usual, "gvisor", "policies"]


def test_a_cluster_covers_what_asks_for_less() -> None:
    """An option more does no harm; another patience with nodes is another cluster."""
    rich = Options(("gvisor",), policies=True)
    assert rich.covers(Options())
    assert not Options().covers(rich)
    assert not Options(node_grace_s=40).covers(Options())


def test_the_same_files_make_the_same_image(tmp_path: Path) -> None:
    """The digest follows from the content alone."""
    made = [images.make(tmp_path / name, {"bin/x": b"x"}, links={"bin/y": "x"}) for name in ("one", "two")]
    assert (made[0] / "index.json").read_bytes() == (made[1] / "index.json").read_bytes()
    other = images.make(tmp_path / "three", {"bin/x": b"other"}, links={"bin/y": "x"})
    assert (other / "index.json").read_bytes() != (made[0] / "index.json").read_bytes()


def test_a_fake_node_turns_away_what_does_not_tolerate_it() -> None:
    """Taint and label are what tests select by."""
    node = nodes.fake_node(7)
    assert node["metadata"]["name"] == "fake-00007"
    assert node["metadata"]["labels"]["type"] == "kwok"
    assert node["spec"]["taints"] == [nodes.FAKE_TAINT]


@pytest.mark.parametrize(("said", "serves"), [(bytes((0, 0, 0, 4, 0, 0, 0, 0, 0)), True), (b"HTTP/1.1 ", False), (b"", False)])
def test_a_server_of_grpc_is_known_by_its_first_frame(tmp_path: Path, said: bytes, serves: bool) -> None:
    """A socket that only takes connections, or is somebody else's, is not taken for one."""
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(1)

        def serve() -> None:
            taken, _ = listener.accept()
            with taken:
                taken.recv(100)
                taken.sendall(said)

        server = threading.Thread(target=serve)
        server.start()
        assert readiness.answers(f"grpc:{path}") is serves
        server.join()
    assert not readiness.answers(f"grpc:{path}")
