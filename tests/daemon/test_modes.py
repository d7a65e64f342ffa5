"""The id modes below root's own: what holds in each, and that nothing more is claimed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.modes import as_test_user
from tests.daemon import outside
from tests.daemon.wire import Host

# A mount namespace as a container engine leaves it: the root is an overlay, or /proc is masked, or both.
CONTAINER = """
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
kind=$1; folder=$2; shift 2
mount --make-rprivate /
root=
case $kind in *overlay*)
    root=$folder/root
    mkdir -p $root
    mount -t tmpfs tmpfs $root
    mkdir $root/upper $root/work $root/merged
    mount -t overlay overlay -o lowerdir=/,upperdir=$root/upper,workdir=$root/work $root/merged
    root=$root/merged
    for shared in /proc /sys /dev; do mount --rbind $shared $root$shared; done
    for shared in /run /tmp $folder; do mount --bind $shared $root$shared; done
esac
case $kind in *masked*) mount -t tmpfs tmpfs $root/proc/acpi || mount --bind /dev/null $root/proc/kcore; esac
if [ "$root" ]; then
    cd $root
    mkdir former
    pivot_root . former
    exec sh -c 'umount -l /former; cd /; exec "$@"' container "$@"
fi
exec "$@"
"""


@pytest.fixture(params=["single", "subuid"])
def ordinary(request: pytest.FixtureRequest, runtime: Path) -> Iterator[Host]:
    """A host of an ordinary user, without and with a range of ids."""
    folder = runtime / request.param
    with as_test_user(request.param, folder) as mode:
        host = Host(mode.runtime, mode=mode.requested, launcher=mode.launcher, daemon=mode.daemon)
        assert host.ready["t"] == "ready", host.ready
        yield host
        assert host.close() == 0
        assert outside.cgroups(host.ready["host"]) == []


def test_an_ordinary_user_has_all_but_the_ids(ordinary: Host) -> None:
    """Namespaces, limits, files, reset: as for root. Users: as many as there are ids."""
    box = ordinary.create("box", limits={"pids": 64, "memory_bytes": 1 << 28}, limits_mode="best-effort")
    assert box.text("id -u; hostname; echo x > /x; cat /x") == "0\nsandbox\nx"
    assert box.text("stat -c %u:%g /root /etc/passwd") == "0:0\n0:0"
    assert box.code("touch /usr/bin/x") != 0  # the machine's own directories belong to nobody in here
    many = ordinary.ready["mode"] == "range-rootless"
    assert (box.code("chown 5:5 /x") == 0) is many
    assert box.text("grep NoNewPrivs /proc/self/status").split()[1] == ("0" if many else "1")
    refused = box.run("id -u", user="5")
    assert refused["code"] == 0 if many else refused["code"] == "user_unsupported"
    for _ in range(3):
        assert all(box.call(t="reset")["verified"].values())
    assert box.code("test ! -e /x") == 0


def test_what_is_not_an_ordinary_users_is_refused(ordinary: Host) -> None:
    """Escapes end where root's do."""
    box = ordinary.create("box")
    single = ordinary.ready["mode"] == "single"
    for attempt in (
        "mount -t tmpfs none /mnt",
        "unshare -Ur true",
        "cat /proc/1/environ",
        "mknod /x c 1 1",
        "echo 0 > /proc/1/oom_score_adj",
    ):
        if not (single and "oom_score_adj" in attempt):  # there root of the sandbox is its maker, and may tell on itself
            assert box.code(attempt) != 0, attempt
    assert box.text("ls -A /home") == ""


def test_bare_directories_are_given_and_cleared(ordinary: Host, runtime: Path) -> None:
    """An image is unpacked under the sandbox's ids, used as a layer, and removed again."""
    tree = runtime / ("single" if ordinary.ready["mode"] == "single" else "subuid") / "tree"
    tree.mkdir()
    os.chown(tree, *owner_of(ordinary))
    bare = ordinary.create("bare", image={"kind": "bare", "path": os.fsencode(tree)})
    assert bare.call(t="write", path=b"/etc/new", d=b"text", eof=True, parents=True, mode=0o4750)["t"] == "ok"
    ordinary.destroy("bare")
    box = ordinary.create("layered", image={"kind": "host", "layers": [os.fsencode(tree)]})
    assert box.text("stat -c %u:%g:%a /etc/new; cat /etc/new") == "0:0:4750\ntext"
    assert box.code("echo changed > /etc/new") == 0
    ordinary.destroy("layered")
    again = ordinary.create("again", image={"kind": "bare", "path": os.fsencode(tree)})
    assert again.call(t="remove", path=b"/etc", recursive=True)["t"] == "ok"
    assert list(tree.iterdir()) == []


def owner_of(host: Host) -> tuple[int, int]:
    """Whose host it is."""
    found = os.stat(f"/proc/{host.ready['pid']}")
    return found.st_uid, found.st_gid


@pytest.mark.parametrize("kind", ["overlay", "masked", "overlay-masked"])
def test_a_container_that_forbids_something_is_declared(kind: str, runtime: Path) -> None:
    """Mode nested says so and what to do; the sandbox works as far as it can."""
    folder = runtime / kind
    folder.mkdir()
    host = Host(folder, launcher=["unshare", "-m", "sh", "-c", CONTAINER, "container", kind, str(folder)])
    assert host.ready["t"] == "ready", host.ready
    assert host.ready["mode"] == "nested"
    probe = host.ask(t="probe")
    missing = {entry["what"]: entry["remedy"] for entry in probe["missing"]}
    assert ("/proc" in missing) is ("masked" in kind)
    assert ("idmapped mounts" in missing) is ("overlay" in kind)
    assert all(missing.values())
    box = host.create("box", limits={"pids": 64})
    assert box.greeting["mode"] == "nested"
    assert box.text("id -u; echo x > /x; stat -c %u /x /root; ls -A /home") == "0\n0\n0"
    assert box.text("ls /proc | head -1") == ("" if "masked" in kind else "1")
    for _ in range(3):
        assert all(box.call(t="reset")["verified"].values())
    assert box.code("test ! -e /x") == 0
    assert host.close() == 0
    assert outside.cgroups(host.ready["host"]) == []


@pytest.mark.parametrize("mode", ["single", "range-rootless", "nonsense"])
def test_a_mode_that_cannot_be_had_is_an_error(mode: str, runtime: Path) -> None:
    """As the first and only word of the host, which then ends with code 1."""
    host = Host(runtime, mode=mode)
    assert (host.ready["t"], host.ready["id"]) == ("error", 0)
    assert host.ready["code"] in {"unsupported", "bad_request"}
    assert host.process.wait(10) == 1
    host.close()


def test_only_its_parent_may_be_a_hosts_client(runtime: Path) -> None:
    """A number that is not the parent's is refused: it could be anybody's by now."""
    host = Host(runtime, launcher=["sh", "-c", '"$@"; exit $?', "between"])
    assert host.ready["code"] == "bad_request"
    host.close()
