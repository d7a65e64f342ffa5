"""Pools of pods: what comes back is as it was after creation, or it is another pod."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest
import pytest_asyncio

import sandlot
from cluster import Cluster
from sandlot.backends.kubernetes import ClusterOptions
from sandlot.pool import Pool, PoolLimits, PoolStatistics
from sandlot.strategies import fixed
from tests.cluster import pods
from tests.cluster.pods import becomes
from tests.images.build import image

pytestmark = pytest.mark.slow

RUNTIME_DEFAULT = {"extra": {"securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}}}
"""The profile that forbids user namespaces to everybody but administrators."""
RESTRICTED = {"security": "restricted"}

LOOK = r"""
hostname; pwd; id; umask; env | sort
cut -d' ' -f5,6,9- /proc/self/mountinfo | sed 's/[a-z]*dir=[^, ]*//g' | sort
find / \( -path /proc -o -path /sys \) -prune -o ! -type f -exec stat -c '%n %F %A %u %g %t %T %N' {} + | sort
find / \( -path /proc -o -path /sys \) -prune -o -type f -exec stat -c '%n %A %u %g %s' {} + -exec md5sum {} + | sort
cat /etc/hosts /etc/hostname /etc/resolv.conf; ls -l /proc/1/cwd 2>&1; ulimit -a
"""
"""Everything that an episode could change and that can be seen from inside, but the processes."""

SPOIL = r"""
hostname other; mount -t tmpfs none /mnt; umount /dev/shm; mount -o remount,rw /
for place in / /bin /etc /root /home /tmp /run /dev /dev/shm /dev/mqueue /var/tmp; do echo x >$place/x; mkdir $place/d; done
echo 6.6.6.6 evil >>/etc/hosts; echo evil >>/etc/passwd; chmod 777 /etc; chown 7:7 /root; rm /etc/group
rm -f /bin/ls /bin/cat; ln -s /tmp/x /bin/ls; mknod /tmp/fifo p; chmod 700 /tmp; touch -d 2001-01-01 /etc/passwd
(setsid sleep 100000 </dev/null >/dev/null 2>&1 &); (trap '' TERM HUP INT; sleep 100000 </dev/null >/dev/null 2>&1 &)
true
"""


TOUCH = r"""
for place in /tmp /dev/shm /var/tmp /run /root; do
    [ -w $place ] && mkdir -p $place/d/e && echo x >$place/x && echo x >$place/d/e/x
done
ln -s x /tmp/link; mkdir /dev/mqueue/d; touch /dev/mqueue/x
(setsid sleep 100000 </dev/null >/dev/null 2>&1 &); (trap '' TERM HUP INT; sleep 100000 </dev/null >/dev/null 2>&1 &)
true
"""
"""What is put back where nothing can be mounted."""


@dataclass(frozen=True)
class Place:
    """A client's sandboxes, and the same namespace as the administrator sees it."""

    provider: sandlot.Provider
    cluster: Cluster
    namespace: str

    def spec(self, name: str = "busybox", /, options: Mapping[str, Any] = MappingProxyType({}), **fields: Any) -> sandlot.Spec:
        pod = sandlot.PodOptions(node_selector={"kubernetes.io/hostname": self.cluster.real_node}, **options)
        return sandlot.Spec(image=image(name), limits="best-effort", pod=pod, **fields)

    def pods(self) -> list[str]:
        with self.cluster.api() as api:
            return [one["metadata"]["name"] for one in api.get(f"/api/v1/namespaces/{self.namespace}/pods")["items"]]

    def delete_pod(self, name: str) -> None:
        with self.cluster.api() as api:
            api.delete(f"/api/v1/namespaces/{self.namespace}/pods/{name}?gracePeriodSeconds=0")

    def kill_daemon(self, name: str) -> None:
        """SIGKILL the first process of a sandbox's container."""
        wanted = (self.namespace, name, "task")
        (container,) = [one for one in self.cluster.containers() if (one.namespace, one.pod, one.name) == wanted]
        os.kill(container.pid, signal.SIGKILL)


@pytest_asyncio.fixture
async def place(cluster: Cluster) -> AsyncIterator[Place]:
    """It must leave nothing."""
    with pods.lasting_namespace(cluster) as name:
        options = ClusterOptions(namespace=name, connect="dial-in", delivery="image")
        opened = sandlot.kubernetes(kubeconfig=cluster.kubeconfig, registry=f"{cluster.registry}/sandlot", options=options)
        async with opened as provider:
            found = Place(provider, cluster, name)
            yield found
            assert (await provider.aclose()).left == ()
        assert found.pods() == []


@asynccontextmanager
async def pool_of_one(place: Place, spec: sandlot.Spec) -> AsyncIterator[Pool]:
    """Keeps one sandbox, and has room for no more: a second lease gets the first one's, or waits until that is gone."""
    async with Pool(place.provider, strategy=fixed({spec: 1}), limits=PoolLimits(sandboxes=1)) as pool:
        yield pool


async def text(box: sandlot.Sandbox, command: str) -> str:
    """What it says, both streams."""
    return (await box.exec(f"exec 2>&1\n{command}")).stdout


def counts(found: PoolStatistics) -> dict[str, int]:
    """What a pool says of itself, in numbers."""
    names = ("created", "reused", "reset", "leases")
    return {name: getattr(found, name) for name in names} | {"discarded": sum(found.discarded.values())}


def are_one_and_the_same(names: list[str], seen: list[list[str]]) -> None:
    """Three leases had one pod, in which each saw what the first had seen."""
    assert len(set(names)) == 1
    assert len(seen[0]) > 100
    assert seen[1] == seen[0]
    assert seen[2] == seen[0]


# --- in place ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, id="root"),
        pytest.param({"read_only": True}, id="read-only root"),
        pytest.param({"user": "nobody"}, id="a user by name"),
        pytest.param({"shm": "32MiB", "memory": "256MiB", "workdir": "/root"}, id="own limits"),
    ],
)
async def test_everything_that_an_episode_changed_is_as_after_creation(place: Place, fields: dict[str, Any]) -> None:
    """The same pod again and again: files of every place, mounts, host name, processes, shells."""
    spec = place.spec(**fields)
    async with pool_of_one(place, spec) as pool:
        names, seen, alive = [], [], []
        for _ in range(3):
            async with pool.lease(spec) as box:
                names.append(box.name)
                alive.append([one.argv for one in await box.processes()])
                seen.append((await text(box, LOOK)).splitlines())
                shell = await box.shell()
                await shell.run("cd /tmp; export LEFT=behind; lost() { echo lost; }; set -f")
                await box.write("/tmp/by-file", b"x" * 100_000)
                await box.exec(SPOIL, user="0")
                assert (await text(box, LOOK)).splitlines() != seen[0], "nothing was spoiled"
        await becomes(lambda: pool.statistics().idle == 1, "the last reset")
        assert counts(pool.statistics()) == {"created": 1, "reused": 2, "reset": 3, "leases": 3, "discarded": 0}
    are_one_and_the_same(names, seen)
    assert alive[0] == alive[1] == alive[2]


async def test_a_shell_of_an_earlier_lease_is_of_no_use(place: Place) -> None:
    """Neither its handle nor the process; a new one knows nothing of it."""
    spec = place.spec()
    async with pool_of_one(place, spec) as pool:
        async with pool.lease(spec) as box:
            old = await box.shell()
            await old.run("export LEFT=behind; cd /tmp")
        async with pool.lease(spec) as box:
            with pytest.raises(sandlot.SandlotError):
                await old.run("echo still here")
            shell = await box.shell()
            assert (await shell.run("echo $LEFT; pwd")).stdout == "\n/\n"
        assert pool.statistics().reused == 1


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"options": RUNTIME_DEFAULT}, id="root without user namespaces"),
        pytest.param({"options": RESTRICTED, "user": 1000, "workdir": "/tmp"}, id="restricted"),
    ],
)
async def test_without_namespaces_what_was_changed_is_put_back(place: Place, fields: dict[str, Any]) -> None:
    """In the working directory, home and where temporary files lie; the rest is proved to be as it was."""
    spec = place.spec(**fields)
    async with pool_of_one(place, spec) as pool:
        names, seen = [], []
        for _ in range(3):
            async with pool.lease(spec) as box:
                names.append(box.name)
                seen.append((await text(box, LOOK)).splitlines())
                await box.exec(TOUCH)
                await box.write("/tmp/by-file", b"x" * 100_000)
                diff = await box.changes("/tmp")
                assert {"by-file", "x"} <= {os.fsdecode(entry.path) for entry in diff.entries}
                await box.exec("chmod 0 /tmp/d", check=True)
        await becomes(lambda: pool.statistics().idle == 1, "the last reset")
        assert counts(pool.statistics()) == {"created": 1, "reused": 2, "reset": 3, "leases": 3, "discarded": 0}
    are_one_and_the_same(names, seen)


# --- another pod ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("name", "fields", "place_changed"),
    [
        pytest.param("busybox", {"options": RUNTIME_DEFAULT}, "/etc", id="what is not kept has changed"),
        pytest.param("nonroot", {}, "/dev/shm", id="an image that is not root's"),
        pytest.param("busybox", {"user": 1000}, "/dev/shm", id="a user by number"),
    ],
)
async def test_what_cannot_be_reset_is_replaced(place: Place, name: str, fields: dict[str, Any], place_changed: str) -> None:
    """No lease sees what another left, whatever the container may do."""
    spec = place.spec(name, **fields)
    async with pool_of_one(place, spec) as pool:
        names = []
        for _ in range(2):
            async with pool.lease(spec) as box:
                names.append(box.name)
                assert await text(box, f"ls -A /tmp /dev/shm; echo x >{place_changed}/x") == "/dev/shm:\n\n/tmp:\n"
            await becomes(lambda: sum(pool.statistics().discarded.values()) == len(names), "news of what cannot be undone")
        found = counts(pool.statistics())
        assert {**found, "created": 0} == {"created": 0, "reused": 0, "reset": 0, "leases": 2, "discarded": 2}
        assert found["created"] in (2, 3), "the third is for whoever comes next"
    assert len(set(names)) == 2


async def test_a_sandbox_that_died_in_a_lease_is_replaced(place: Place) -> None:
    """Its daemon is killed while somebody has it."""
    spec = place.spec()
    async with pool_of_one(place, spec) as pool:
        async with pool.lease(spec) as box:
            first = box.name
            place.kill_daemon(first)
            with pytest.raises(sandlot.SandboxGone):
                await box.exec("sleep 100000")
        async with pool.lease(spec) as box:
            assert box.name != first
            assert await text(box, "echo here") == "here\n"
        assert (pool.statistics().created, pool.statistics().reused) == (2, 0)


# --- parked -----------------------------------------------------------------------------------------------------------
async def test_a_parked_sandbox_whose_daemon_was_killed_is_not_handed_out(place: Place) -> None:
    """Not even to a request that comes at once."""
    spec = place.spec()
    async with pool_of_one(place, spec) as pool:
        async with pool.lease(spec) as box:
            first = box.name
        await becomes(lambda: pool.statistics().idle == 1, "the reset")
        place.kill_daemon(first)
        await _gets_another(pool, spec, first)


async def test_a_parked_sandbox_whose_pod_was_deleted_is_not_handed_out(place: Place) -> None:
    """By anybody, while nobody looked."""
    spec = place.spec()
    async with pool_of_one(place, spec) as pool:
        async with pool.lease(spec) as box:
            first = box.name
        await becomes(lambda: pool.statistics().idle == 1, "the reset")
        place.delete_pod(first)
        await becomes(lambda: pool.statistics().idle == 0, "news of the deletion")
        await _gets_another(pool, spec, first)


async def _gets_another(pool: Pool, spec: sandlot.Spec, first: str) -> None:
    async with pool.lease(spec) as box:
        assert box.name != first
        assert await text(box, "echo here") == "here\n"
        found = pool.statistics()
        assert (found.created, found.reused, sum(found.discarded.values())) == (2, 0, 1)


# --- many -------------------------------------------------------------------------------------------------------------
async def test_many_episodes_need_few_pods(place: Place) -> None:
    """As many as run at once, and none sees another's traces."""
    at_once, episodes = 4, 32
    spec = place.spec(memory="64MiB")
    numbers = iter(range(episodes))

    async def work(pool: Pool) -> None:
        for number in numbers:
            async with pool.lease(spec) as box:
                done = await box.exec(f"test ! -e /tmp/mark && echo {number} >/tmp/mark && exit {number}; exit 255")
                assert done.exit_code == number

    async with Pool(place.provider, limits=PoolLimits(sandboxes=at_once)) as pool:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(work(pool))
        found = pool.statistics()
    assert found.leases == episodes
    assert found.created <= at_once + sum(found.discarded.values())
    assert found.reused == episodes - found.created
