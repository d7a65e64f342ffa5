"""Leases of clients and of sandboxes, and the reaper: by the server's time, without trusting any other clock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from sandlot.backends.kubernetes import naming
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.leases import ClientLease, SandboxLeases, left_s
from sandlot.backends.kubernetes.objects import Lease, LeaseSpec, Metadata
from sandlot.backends.kubernetes.reaper import SETTLE_S, Overdue, Reaped, Reaper
from sandlot.backends.kubernetes.server_time import micro_time, unix_time
from sandlot.errors import BadRequest, SandboxGone
from tests.unit.backends.kubernetes.fake_api import NAMESPACE, FakeCluster, refusal

pytestmark = pytest.mark.looptime(noop_cycles=300)  # both ends of real sockets are here: bytes may be on their way


async def taken(api: Api) -> ClientLease:
    """Taken by client `c1`, and renewed by nobody. Not a fixture, since time is virtual only in the test itself."""
    await api.request("GET", "/version")
    lease = ClientLease(api, NAMESPACE, "c1", lease_s=60, renew_s=10)
    await lease.acquire()
    return lease


@contextlib.asynccontextmanager
async def kept(lease: ClientLease) -> AsyncIterator[asyncio.Task[None]]:
    """Renewed as long as the block runs."""
    task = asyncio.create_task(lease.keep())
    yield task
    task.cancel()
    await asyncio.wait([task])


def add_pod(cluster: FakeCluster, name: str, client: str, owner: str = "attached") -> None:
    labels = {
        naming.KIND: "sandbox", naming.CLIENT: client, naming.OWNER: owner, naming.SHARD: naming.shard(name)
    }  # fmt: skip
    cluster.pods[name] = {"metadata": {"name": name, "uid": name, "labels": labels}, "spec": {}, "status": {"phase": "Running"}}


def left(cluster: FakeCluster, name: str) -> float:
    """Seconds that a Lease has, by the server's clock."""
    spec = cluster.leases[name]["spec"]
    return unix_time(spec["renewTime"]) + float(spec["leaseDurationSeconds"]) - cluster.now()


# --- the client's -----------------------------------------------------------------------------------------------------
async def test_lease_is_written_in_the_servers_time(cluster: FakeCluster, api: Api) -> None:
    """This machine's clock may be years off."""
    cluster.skew_s = -5e7
    await api.request("GET", "/version")
    lease = ClientLease(api, NAMESPACE, "c1", lease_s=60, renew_s=10)
    await lease.acquire()
    assert 58 <= left(cluster, "sandlot-client-c1") <= 60
    assert cluster.leases["sandlot-client-c1"]["metadata"]["labels"] == {naming.KIND: "client", naming.CLIENT: "c1"}
    assert lease.owner.uid == cluster.leases["sandlot-client-c1"]["metadata"]["uid"]


async def test_lease_is_renewed_and_one_that_lives_is_left_alone(cluster: FakeCluster, api: Api) -> None:
    """For an hour, with a reaper looking."""
    lease = await taken(api)
    add_pod(cluster, "p", "c1")
    reaping = asyncio.create_task(Reaper(api, NAMESPACE).run())
    async with kept(lease):
        for _ in range(60):
            await asyncio.sleep(60)
            assert left(cluster, lease.name) > 45
    reaping.cancel()
    assert set(cluster.pods) == {"p"}


async def test_outage_kills_no_client_that_lives(cluster: FakeCluster, api: Api) -> None:
    """All Leases have run out when a server comes back after ten minutes: nobody is declared dead before all could renew."""
    lease = await taken(api)
    add_pod(cluster, "p", "c1")
    reaping = asyncio.create_task(Reaper(api, NAMESPACE).run())
    async with kept(lease) as keeping:
        with cluster.trouble("GET", "leases", refusal(503)), cluster.trouble("PATCH", "leases", refusal(503)):
            await asyncio.sleep(600)
            assert left(cluster, lease.name) < -500
        await asyncio.sleep(60)
        assert not keeping.done()
    reaping.cancel()
    assert (set(cluster.pods), left(cluster, lease.name) > 0) == ({"p"}, True)


async def test_client_that_came_and_died_between_two_looks_is_noticed_in_time(cluster: FakeCluster, api: Api) -> None:
    """With short leases one looks more often: half a minute after its Lease has run out, nothing of it is left."""
    await api.request("GET", "/version")
    reaping = asyncio.create_task(Reaper(api, NAMESPACE, lease_s=9).run())
    await asyncio.sleep(1)
    lease = ClientLease(api, NAMESPACE, "c1", lease_s=9, renew_s=3)
    await lease.acquire()
    add_pod(cluster, "p", "c1")
    await asyncio.sleep(9 + 30)
    reaping.cancel()
    assert (cluster.pods, cluster.leases) == ({}, {})


async def test_client_that_was_stopped_makes_nothing_for_a_lease_that_may_be_gone(cluster: FakeCluster, api: Api) -> None:
    """It waits until it knows: here others have taken it for dead, and it makes its pods for its new Lease."""
    lease = await taken(api)
    before = await lease.living_owner()
    await asyncio.sleep(61)  # without a renewal
    asking = asyncio.create_task(lease.living_owner())
    await cluster.remove("leases", lease.name)
    await lease.keep()
    assert not asking.done()
    await lease.acquire()
    assert (await asking).uid == lease.owner.uid != before.uid


async def test_lost_lease_is_noticed(cluster: FakeCluster, api: Api) -> None:
    """Somebody declared this client dead: `keep` returns, and a new Lease is another one."""
    lease = await taken(api)
    before = lease.owner.uid
    async with kept(lease) as keeping:
        await cluster.remove("leases", lease.name)
        await keeping
    await lease.acquire()
    assert lease.owner.uid != before


async def test_lease_whose_answer_was_lost_is_our_own(cluster: FakeCluster, api: Api) -> None:
    """Taking it again finds it there."""
    lease = await taken(api)
    again = ClientLease(api, NAMESPACE, "c1", lease_s=60, renew_s=10)
    await again.acquire()
    assert again.owner == lease.owner
    await again.release()
    await again.release()
    assert cluster.leases == {}


# --- the sandboxes' -----------------------------------------------------------------------------------------------------
async def test_lease_of_a_sandbox_lives_as_long_as_it_is_renewed(cluster: FakeCluster, api: Api) -> None:
    """By whoever knows the name; afterwards it is gone, and renewing says so."""
    await api.request("GET", "/version")
    leases = SandboxLeases(api, NAMESPACE, "c1")
    owner = await leases.grant("box", 30)
    assert owner.name == "sandlot-lease-box"
    with pytest.raises(BadRequest):
        await leases.grant("box", 30)
    await asyncio.sleep(20)
    await leases.renew("box", 45.5)
    assert 44 <= left(cluster, "sandlot-lease-box") <= 46
    await leases.revoke("box")
    with pytest.raises(SandboxGone) as raised:
        await leases.renew("box", 30)
    assert raised.value.why == "lease_expired"


# --- the reaper -----------------------------------------------------------------------------------------------------------
async def test_what_a_dead_client_left_is_deleted_within_its_lease_and_half_a_minute(cluster: FakeCluster, api: Api) -> None:
    """Its attached pods and its Lease; its leased sandboxes and everybody else's pods stay."""
    await taken(api)
    for number in range(40):
        add_pod(cluster, f"dead-{number}", "c1")
    add_pod(cluster, "leased", "c1", "leased")
    add_pod(cluster, "alive", "c2")
    other = ClientLease(api, NAMESPACE, "c2", lease_s=60, renew_s=10)
    await other.acquire()
    reaping = asyncio.create_task(Reaper(api, NAMESPACE, own=other.name).run())
    async with kept(other):
        await asyncio.sleep(60)
        assert len(cluster.pods) == 42
        await asyncio.sleep(30)
    reaping.cancel()
    assert (set(cluster.pods), set(cluster.leases)) == ({"leased", "alive"}, {other.name})


async def test_lease_of_a_sandbox_that_ran_out_takes_it_away(cluster: FakeCluster, api: Api) -> None:
    """And it alone."""
    await api.request("GET", "/version")
    for name in ("one", "two"):
        await SandboxLeases(api, NAMESPACE, "c1").grant(name, 10 if name == "one" else 1000)
        add_pod(cluster, name, "c1", "leased")
    await asyncio.sleep(15)
    assert await Reaper(api, NAMESPACE).sweep() == Reaped((), ("one",))
    assert (set(cluster.pods), set(cluster.leases)) == ({"two"}, {"sandlot-lease-two"})


async def test_sweep_deletes_pods_without_a_lease(cluster: FakeCluster, api: Api) -> None:
    """Somebody deleted the Lease and then died too; pods that are no sandboxes are not looked at."""
    lease = await taken(api)
    add_pod(cluster, "orphan", "c9")
    add_pod(cluster, "mine", "c1")
    cluster.pods["web"] = {"metadata": {"name": "web", "labels": {"app": "web"}}, "status": {}}
    assert await Reaper(api, NAMESPACE, own=lease.name).sweep() == Reaped((), ("orphan",))
    assert set(cluster.pods) == {"mine", "web"}


async def test_lease_renewed_in_the_last_moment_is_left_alone(cluster: FakeCluster, api: Api) -> None:
    """Between the look and the deletion: it is deleted only as it was seen."""
    lease = await taken(api)
    add_pod(cluster, "p", "c1")
    reaper = Reaper(api, NAMESPACE)
    await asyncio.sleep(70)
    await reaper.look()
    await asyncio.sleep(SETTLE_S)

    async def renew(_request: object) -> None:
        cluster.leases[lease.name]["spec"]["renewTime"] = micro_time(cluster.now())
        cluster.leases[lease.name]["metadata"]["resourceVersion"] = "9999"

    with cluster.trouble("DELETE", "leases", renew):
        assert (await reaper.look())[0] == Reaped()
    assert (set(cluster.pods), set(cluster.leases)) == ({"p"}, {lease.name})


async def test_two_reapers_are_as_good_as_one(cluster: FakeCluster, api: Api) -> None:
    """The second finds the Lease gone, and nothing of it is an error."""
    await taken(api)
    add_pod(cluster, "p", "c1")
    await asyncio.sleep(70)
    reaped = await asyncio.gather(*(Reaper(api, NAMESPACE).sweep() for _ in range(5)))
    assert sum("c1" in one.clients for one in reaped) == 1
    assert (cluster.pods, cluster.leases) == ({}, {})


def test_suspects_are_judged_after_they_settled() -> None:
    """Pure: a Lease that ran out is suspected, then judged; one that moves is not; a failed look begins everything again."""

    def lease(renewed: float) -> Lease:
        spec = LeaseSpec(lease_duration_seconds=60, renew_time=micro_time(renewed))
        return Lease(metadata=Metadata(name="l", uid="u"), spec=spec)

    overdue = Overdue()
    assert overdue.look([lease(1000)], 1050) == ([], 12)
    assert overdue.look([lease(1000)], 1063)[0] == []
    assert overdue.look([lease(1000)], 1063 + SETTLE_S - 1)[0] == []
    overdue.forget()
    assert overdue.look([lease(1000)], 1063 + SETTLE_S)[0] == []
    assert overdue.look([lease(1020)], 1200)[0] == []
    dead, _ = overdue.look([lease(1020)], 1200 + SETTLE_S)
    assert [one.metadata.name for one in dead] == ["l"]


@pytest.mark.parametrize("spec", [LeaseSpec(), LeaseSpec(renew_time="never", lease_duration_seconds=1)])
def test_leases_without_times_are_nobodys(spec: LeaseSpec) -> None:
    """What somebody else made or spoilt is never judged."""
    lease = Lease(metadata=Metadata(name="x", uid="u"), spec=spec)
    assert left_s(lease, 0.0) is None
    assert Overdue().look([lease], 1e12)[0] == []
