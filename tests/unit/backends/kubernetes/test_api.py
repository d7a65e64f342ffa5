"""Requests, refusals and streams, over real HTTP."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Callable
from itertools import pairwise

import pytest
from aiohttp import web

from sandlot import errors
from sandlot.backends.kubernetes import api_errors as e
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.credentials import Credentials
from sandlot.backends.kubernetes.objects import Named, PodList, Status
from sandlot.backends.kubernetes.retrying import insist
from tests.unit.backends.kubernetes.fake_api import EPOCH_S, FakeCluster, refusal

pytestmark = pytest.mark.looptime(noop_cycles=300)  # both ends of real sockets are here: bytes may be on their way

PODS = "/api/v1/namespaces/boxes/pods"
POD = b'{"metadata":{"name":"p","labels":{"a":"b"}},"spec":{}}'


async def test_objects_are_made_found_and_deleted(api: Api) -> None:
    """The four verbs, and what they decode."""
    made = await api.post(PODS, POD, Named)
    assert (made.metadata.name, made.metadata.uid != "") == ("p", True)
    assert [one.metadata.name for one in (await api.get(PODS, PodList)).items] == ["p"]
    await api.patch(f"{PODS}/p", b'{"metadata":{"labels":{"a":"c"}}}', Named)
    assert (await api.get(f"{PODS}/p", Named)).metadata.labels == {"a": "c"}
    await api.delete(f"{PODS}/p", Named)
    with pytest.raises(e.ApiNotFound):
        await api.get(f"{PODS}/p", Named)
    assert (api.sent["POST"], api.sent["DELETE"]) == (1, 1)


@pytest.mark.parametrize(
    ("status", "reason", "message", "kind", "base"),
    [
        (400, "BadRequest", "unknown field", e.ApiInvalid, errors.BadRequest),
        (401, "Unauthorized", "", e.ApiDenied, errors.Denied),
        (403, "Forbidden", "cannot create resource pods", e.ApiDenied, errors.Denied),
        (403, "Forbidden", "exceeded quota: q, requested: pods=1, used: pods=5, limited: pods=5", e.ApiFull, errors.Capacity),
        (403, "Forbidden", "violates PodSecurity", e.ApiDenied, errors.Denied),
        (404, "NotFound", "", e.ApiNotFound, errors.BadRequest),
        (408, "Timeout", "", e.ApiUnavailable, errors.Infrastructure),
        (409, "AlreadyExists", "", e.ApiExists, errors.BadRequest),
        (409, "Conflict", "resourcequotas: the object has been modified", e.ApiConflict, errors.Infrastructure),
        (410, "Expired", "", e.ApiExpired, errors.Infrastructure),
        (422, "Invalid", "spec: invalid", e.ApiInvalid, errors.BadRequest),
        (429, "TooManyRequests", "", e.ApiThrottled, errors.Throttled),
        (500, "InternalError", "failed calling webhook", e.ApiUnavailable, errors.Infrastructure),
        (503, "ServiceUnavailable", "", e.ApiUnavailable, errors.Infrastructure),
        (504, "Timeout", "", e.ApiUnavailable, errors.Infrastructure),
    ],
)
async def test_refusals_are_of_the_one_tree(
    cluster: FakeCluster,
    api: Api,
    status: int,
    reason: str,
    message: str,
    kind: type[e.ApiError],
    base: type[errors.SandlotError],
) -> None:
    """Each is an ApiError with the status and also the class that says whose fault it is; retriable as that class is."""
    with cluster.trouble("POST", "pods", refusal(status, reason, message)), pytest.raises(kind) as raised:
        await api.post(PODS, POD, Named)
    assert isinstance(raised.value, base)
    assert (raised.value.status, raised.value.reason) == (status, reason)
    assert raised.value.retriable == base.retriable
    assert type(pickle.loads(pickle.dumps(raised.value))) is kind


async def test_time_to_come_back_is_told(cluster: FakeCluster, api: Api) -> None:
    """429 with Retry-After, as the server's flow control says it."""
    with cluster.trouble("GET", "pods", refusal(429, **{"Retry-After": "7"})), pytest.raises(errors.Throttled) as raised:
        await api.get(PODS, PodList)
    assert raised.value.retry_after_s == 7


@pytest.mark.parametrize("body", [b"", b"<html>bad gateway</html>", b"\xff\xfe", b"[]"])
async def test_pages_of_proxies_are_refusals_too(cluster: FakeCluster, api: Api, body: bytes) -> None:
    """Whoever answers in the API server's place does not speak its language."""

    async def page(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=502, body=body)

    with cluster.trouble("GET", "pods", page), pytest.raises(e.ApiUnavailable) as raised:
        await api.get(PODS, PodList)
    assert raised.value.status == 502


async def test_nonsense_instead_of_an_object_is_a_breach(cluster: FakeCluster, api: Api) -> None:
    """A success that is no object of that kind."""

    async def page(_request: web.Request) -> web.StreamResponse:
        return web.Response(body=b'{"items": 7}')

    with cluster.trouble("GET", "pods", page), pytest.raises(errors.ProtocolViolation):
        await api.get(PODS, PodList)


async def test_no_server_is_a_lost_transport() -> None:
    """Nobody listens: typed, retriable, and no secret in the text."""

    async def load() -> Credentials:
        return Credentials("http://127.0.0.1:9", "n", headers={"Authorization": "Bearer secret"})

    async with await Api.open(load) as api:
        with pytest.raises(errors.TransportLost) as raised:
            await api.get("/version", Status)
    assert raised.value.retriable
    assert "secret" not in f"{raised.value!s}{await load()!r}"


async def test_connection_cut_in_the_middle_is_a_lost_transport(cluster: FakeCluster, api: Api) -> None:
    """Whether the request was carried out is not known then."""

    async def cut(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.close()
        return web.Response()

    with cluster.trouble("POST", "pods", cut), pytest.raises(e.ApiUnreachable):
        await api.post(PODS, POD, Named)


async def test_stale_credentials_are_read_anew_once_for_all(cluster: FakeCluster, api: Api) -> None:
    """A token that ended is replaced; requests that were refused meanwhile share one reading and are sent again."""
    cluster.tokens = {"second"}
    await asyncio.gather(*(api.get(PODS, PodList) for _ in range(20)))
    assert api.credentials.headers["Authorization"] == "Bearer second"
    assert cluster.count("GET") == 40


async def test_credentials_that_stay_refused_are_denied(cluster: FakeCluster, api: Api) -> None:
    """No endless reading."""
    with cluster.trouble("GET", "pods", refusal(401, "Unauthorized")), pytest.raises(errors.Denied):
        await api.get(PODS, PodList)
    assert cluster.count("GET") == 2


async def test_requests_share_a_bounded_pool_and_streams_do_not_use_it_up(cluster: FakeCluster) -> None:
    """However many ask at once, only so many are under way; a hundred watches leave room for requests."""
    under_way, most = 0, 0

    async def count(_request: web.Request) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.1)
        under_way -= 1

    async with await Api.open(cluster.load, pool=4) as api:
        with cluster.trouble("GET", "limit=1", count):
            await asyncio.gather(*(api.get(PODS, PodList, query={"limit": "1"}) for _ in range(40)))
        assert most == 4
        async with asyncio.TaskGroup() as group:
            watches = [group.create_task(_hold(api)) for _ in range(10)]
            while cluster.count("GET", "watch=1") < 10:  # noqa: ASYNC110 - the server is another's
                await asyncio.sleep(0.1)
            await api.get(PODS, PodList)
            for watch in watches:
                watch.cancel()


async def _hold(api: Api) -> None:
    async with api.watch(PODS, {"resourceVersion": "1"}) as lines:
        async for _ in lines:
            pass


async def test_watch_brings_whole_lines(cluster: FakeCluster, api: Api) -> None:
    """Lines arrive in pieces and several at a time."""
    kinds = []
    async with api.watch(PODS, {"resourceVersion": "100"}) as lines:
        await api.post(PODS, POD, Named)
        await cluster.run("p")
        await cluster.remove("pods", "p")
        async for batch in lines:
            kinds += [json.loads(line)["type"] for line in batch]
            if "DELETED" in kinds:
                break
    assert kinds == ["ADDED", "MODIFIED", "DELETED"]


async def test_watch_with_stale_credentials_opens_with_new_ones(cluster: FakeCluster, api: Api) -> None:
    """As requests do."""
    cluster.tokens = {"second"}
    async with api.watch(PODS, {"resourceVersion": "100"}) as lines:
        await cluster.bookmark()
        async for batch in lines:
            assert [json.loads(line)["type"] for line in batch] == ["BOOKMARK"]
            break


async def test_servers_time_is_told_by_its_answers(cluster: FakeCluster, api: Api) -> None:
    """Whatever this machine's clock says; at most a second behind."""
    with pytest.raises(errors.Infrastructure):
        api.clock.now()
    cluster.skew_s = 1000.25
    await api.get(PODS, PodList)
    assert cluster.now() - 1 <= api.clock.now() <= cluster.now()
    assert api.clock.now() > EPOCH_S + 999


async def test_closed_client_says_so(cluster: FakeCluster) -> None:
    """Not an error of the server."""
    api = await Api.open(cluster.load)
    await api.aclose()
    await api.aclose()
    with pytest.raises(errors.Closed):
        await api.get(PODS, PodList)


# --- asking again -----------------------------------------------------------------------------------------------------
def failing(times: int, error: Callable[[], e.ApiError]) -> tuple[list[float], Callable[[], object]]:
    asked: list[float] = []

    async def ask() -> str:
        asked.append(asyncio.get_running_loop().time())
        if len(asked) <= times:
            raise error()
        return "done"

    return asked, ask


async def test_insisting_asks_until_it_is_answered() -> None:
    """With pauses that grow."""
    asked, ask = failing(5, lambda: e.ApiUnavailable("x"))
    assert await insist(ask, within_s=60) == "done"  # type: ignore[arg-type]
    pauses = [after - before for before, after in pairwise(asked)]
    assert all(0.05 <= pause <= 5 for pause in pauses)
    assert pauses[-1] > pauses[0]


async def test_insisting_obeys_retry_after_and_ends_in_time() -> None:
    """Never earlier than told; and the last error when there is no time left for another try."""

    def throttled() -> e.ApiError:
        error = e.ApiThrottled("later")
        error.retry_after_s = 4
        return error

    asked, ask = failing(99, throttled)
    with pytest.raises(e.ApiThrottled):
        await insist(ask, within_s=10)  # type: ignore[arg-type]
    assert len(asked) == 3
    assert asked[1] - asked[0] >= 4


async def test_insisting_does_not_repeat_what_cannot_work() -> None:
    """A refusal for good is told at once."""
    asked, ask = failing(99, lambda: e.ApiInvalid("no"))
    with pytest.raises(e.ApiInvalid):
        await insist(ask, within_s=10)  # type: ignore[arg-type]
    assert len(asked) == 1
