"""An API server in this process: pods and Leases over real HTTP, with watches, versions, preconditions and troubles on order.

It does for these verbs what the real one does (names that exist, 410 for versions too old, deletion with and without grace,
collections, selectors, pages) and nothing else. Its clock is the event loop's, so that tests may use virtual time.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import Any, Final

from aiohttp import web

from sandlot.backends.kubernetes.credentials import Credentials

Json = dict[str, Any]
Trouble = Callable[[web.Request], Awaitable[web.StreamResponse | None]]

EPOCH_S: Final = 1_900_000_000.0
NAMESPACE: Final = "boxes"


@dataclass(frozen=True, slots=True)
class Change:
    """One line of a watch."""

    version: int
    resource: str
    type: str
    object: Json


@dataclass(slots=True, eq=False)
class FakeCluster:
    """See the module. Use it as `async with`."""

    objects: dict[str, dict[str, Json]] = field(default_factory=lambda: {"pods": {}, "leases": {}})
    events: list[Json] = field(default_factory=list)
    nodes: list[str] = field(default_factory=list)
    requests: list[tuple[str, str]] = field(default_factory=list)
    """Method and path of everything that came."""
    tokens: set[str] = field(default_factory=lambda: {"first"})
    """Those that are believed."""
    skew_s: float = 0.0
    """How far this server's clock is off."""
    cut_watches: int = 0
    _changes: list[Change] = field(default_factory=list)
    _oldest: int = 0
    _version: int = 100
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _troubles: list[Trouble] = field(default_factory=list)
    _runner: web.AppRunner | None = None
    _streams: set[web.StreamResponse] = field(default_factory=set)
    url: str = ""

    async def __aenter__(self) -> FakeCluster:
        app = web.Application(middlewares=[self._middleware])
        base = "/{group:api/v1|apis/coordination.k8s.io/v1}/namespaces/{namespace}/{resource:pods|leases}"
        app.router.add_get("/version", self._get_version)
        app.router.add_get(base, self._list)
        app.router.add_post(base, self._post)
        app.router.add_delete(base, self._delete_collection)
        app.router.add_get(base + "/{name}", self._get)
        app.router.add_patch(base + "/{name}", self._patch)
        app.router.add_delete(base + "/{name}", self._delete)
        app.router.add_get("/api/v1/namespaces/{namespace}/events", self._list_events)
        app.router.add_get("/api/v1/nodes", self._list_nodes)
        self._runner = web.AppRunner(app, shutdown_timeout=0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._runner is not None
        await self._runner.cleanup()

    async def load(self) -> Credentials:
        """Credentials for this server, with the newest token."""
        return Credentials(self.url, NAMESPACE, headers={"Authorization": f"Bearer {max(self.tokens)}"})

    # --- what a test may ask and do -----------------------------------------------------------------------------------
    @property
    def connections(self) -> int:
        """How many are open."""
        assert self._runner is not None
        assert self._runner.server is not None
        return len(self._runner.server.connections)

    @property
    def pods(self) -> dict[str, Json]:
        return self.objects["pods"]

    @property
    def leases(self) -> dict[str, Json]:
        return self.objects["leases"]

    def now(self) -> float:
        """Unix time by this server's clock."""
        return EPOCH_S + asyncio.get_running_loop().time() + self.skew_s

    def count(self, method: str, path: str = "") -> int:
        """Requests so far whose path contains this."""
        return sum(1 for one in self.requests if one[0] == method and path in one[1])

    @contextmanager
    def trouble(self, method: str, path: str, response: Trouble) -> Iterator[None]:
        """Answer requests to such paths so, until the block ends; None of the function lets a request pass."""

        async def answer(request: web.Request) -> web.StreamResponse | None:
            matches = request.method == method and re.search(path, request.path_qs)
            return await response(request) if matches else None

        self._troubles.append(answer)
        try:
            yield
        finally:
            self._troubles.remove(answer)

    async def set_status(self, name: str, *, node: str | None = None, **status: Any) -> None:
        """What a node or scheduler writes."""
        pod = self.pods[name]
        if node is not None:
            pod["spec"]["nodeName"] = node
            status.setdefault("conditions", [{"type": "PodScheduled", "status": "True"}])  # a binding does that
        pod["status"] = {**pod["status"], **status}
        await self._changed("pods", "MODIFIED", pod)

    async def run(self, name: str) -> None:
        """The pod's container runs."""
        task = {"name": "task", "image": "x", "ready": True, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
        await self.set_status(name, node="n1", phase="Running", podIP="198.18.0.9", containerStatuses=[task])

    async def remove(self, resource: str, name: str) -> None:
        """Gone, whoever did it."""
        await self._changed(resource, "DELETED", self.objects[resource].pop(name))

    async def cut(self) -> None:
        """Break every watch."""
        for stream in list(self._streams):
            self.cut_watches += 1
            assert stream.task is not None
            stream.task.cancel()

    def compact(self) -> None:
        """Forget all changes: watches from before now are answered 410."""
        self._oldest = self._version

    # --- serving --------------------------------------------------------------------------------------------------------
    @web.middleware
    async def _middleware(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append((request.method, request.path_qs))
        try:
            response = await self._answer(request, handler)
        except _Refusal as refusal:
            response = refusal.response()
        if not response.prepared:
            response.headers["Date"] = formatdate(int(self.now()), usegmt=True)
        return response

    async def _answer(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if request.headers.get("Authorization", "").removeprefix("Bearer ") not in self.tokens:
            raise _Refusal(401, "Unauthorized", "Unauthorized")
        for trouble in list(self._troubles):
            response = await trouble(request)
            if response is not None:
                return response
        done: web.StreamResponse = await handler(request)
        return done

    async def _changed(self, resource: str, kind: str, obj: Json) -> Json:
        self._version += 1
        obj["metadata"]["resourceVersion"] = str(self._version)
        self._changes.append(Change(self._version, resource, kind, json.loads(json.dumps(obj))))
        async with self._news:
            self._news.notify_all()
        return obj

    async def _get_version(self, _request: web.Request) -> web.Response:
        return web.json_response({"major": "1", "minor": "36"})

    async def _list_events(self, _request: web.Request) -> web.Response:
        return web.json_response({"kind": "EventList", "items": self.events})

    async def _list_nodes(self, request: web.Request) -> web.Response:
        wanted = request.query.get("fieldSelector", "").removeprefix("metadata.name=")
        found = [{"metadata": {"name": name}} for name in self.nodes if wanted in ("", name)]
        return web.json_response({"kind": "NodeList", "items": found})

    async def _list(self, request: web.Request) -> web.StreamResponse:
        if request.query.get("watch"):
            return await self._watch(request)
        resource, selector = request.match_info["resource"], request.query.get("labelSelector", "")
        found = [one for _, one in sorted(self.objects[resource].items()) if matches(one, selector)]
        limit, start = int(request.query.get("limit", "0")), int(request.query.get("continue", "0"))
        meta = {"resourceVersion": str(self._version)}
        if limit and len(found) > start + limit:
            meta["continue"] = str(start + limit)
        return web.json_response({"kind": "List", "metadata": meta, "items": found[start : start + limit] if limit else found})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        resource, selector = request.match_info["resource"], request.query.get("labelSelector", "")
        seen = int(request.query.get("resourceVersion") or self._version)
        response = web.StreamResponse(headers={"Date": formatdate(int(self.now()), usegmt=True)})
        await response.prepare(request)
        self._streams.add(response)
        try:
            if seen < self._oldest:
                gone = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
                await response.write(json.dumps({"type": "ERROR", "object": gone}).encode() + b"\n")
                return response
            while True:
                for change in [one for one in self._changes if one.version > seen and one.resource == resource]:
                    seen = change.version
                    if matches(change.object, selector):
                        line = json.dumps({"type": change.type, "object": change.object}).encode() + b"\n"
                        await response.write(line[:40])  # lines are not what arrives at once
                        await response.write(line[40:])
                async with self._news:
                    await self._news.wait()
        finally:
            self._streams.discard(response)

    async def bookmark(self) -> None:
        """Tell every watch how far the world is."""
        self._version += 1
        mark = {"type": "BOOKMARK", "object": {"kind": "Pod", "metadata": {"resourceVersion": str(self._version)}}}
        for stream in self._streams:
            await stream.write(json.dumps(mark).encode() + b"\n")

    async def _post(self, request: web.Request) -> web.Response:
        resource, obj = request.match_info["resource"], await request.json()
        name = obj["metadata"]["name"]
        if name in self.objects[resource]:
            raise _Refusal(409, "AlreadyExists", f'{resource} "{name}" already exists')
        obj["metadata"] |= {"uid": f"uid-{self._version}-{name}", "namespace": NAMESPACE}
        obj["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z"
        if resource == "pods":
            obj["status"] = {"phase": "Pending"}
            obj["spec"].setdefault("schedulerName", "default-scheduler")
        self.objects[resource][name] = obj
        return web.json_response(await self._changed(resource, "ADDED", obj), status=201)

    async def _get(self, request: web.Request) -> web.Response:
        return web.json_response(self._found(request))

    async def _patch(self, request: web.Request) -> web.Response:
        obj = self._found(request)
        _merge(obj, await request.json())
        return web.json_response(await self._changed(request.match_info["resource"], "MODIFIED", obj))

    async def _delete(self, request: web.Request) -> web.Response:
        obj, resource = self._found(request), request.match_info["resource"]
        body = json.loads(await request.read() or b"{}")
        for key, value in body.get("preconditions", {}).items():
            if obj["metadata"][key] != value:
                raise _Refusal(409, "Conflict", f"the {key} in the precondition does not match")
        await self._delete_object(resource, obj, request.query.get("gracePeriodSeconds", "0"))
        return web.json_response(obj)

    async def _delete_collection(self, request: web.Request) -> web.Response:
        resource, selector = request.match_info["resource"], request.query.get("labelSelector", "")
        for obj in [one for one in self.objects[resource].values() if matches(one, selector)]:
            await self._delete_object(resource, obj, request.query.get("gracePeriodSeconds", "0"))
        return web.json_response({"kind": "Status", "status": "Success"})

    async def _delete_object(self, resource: str, obj: Json, grace: str) -> None:
        if grace != "0" and obj.get("spec", {}).get("nodeName"):
            obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            await self._changed(resource, "MODIFIED", obj)
        else:
            await self.remove(resource, obj["metadata"]["name"])

    def _found(self, request: web.Request) -> Json:
        resource, name = request.match_info["resource"], request.match_info["name"]
        if name not in self.objects[resource]:
            raise _Refusal(404, "NotFound", f'{resource} "{name}" not found')
        return self.objects[resource][name]


def refusal(status: int, reason: str = "", message: str = "", **headers: str) -> Trouble:
    """Always this answer."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return _Refusal(status, reason, message).response(headers)

    return answer


class _Refusal(Exception):
    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.status, self.reason, self.message = status, reason, message

    def response(self, headers: dict[str, str] | None = None) -> web.Response:
        body = {"kind": "Status", "status": "Failure", "code": self.status, "reason": self.reason, "message": self.message}
        return web.json_response(body, status=self.status, headers=headers)


def matches(obj: Json, selector: str) -> bool:
    """Equality and `in`, as label selectors have them."""
    labels = obj["metadata"].get("labels", {})
    for one in re.split(r",(?![^(]*\))", selector):
        chosen = re.fullmatch(r"(\S+) in \((.*)\)", one)
        if chosen is not None:
            if labels.get(chosen[1]) not in chosen[2].split(","):
                return False
        elif one:
            key, _, value = one.partition("=")
            if labels.get(key) != value:
                return False
    return True


def _merge(base: Json, over: Json) -> None:
    for key, value in over.items():
        if isinstance(value, dict):
            _merge(base.setdefault(key, {}), value)
        else:
            base[key] = value
