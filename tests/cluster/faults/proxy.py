"""A proxy before the API server that misbehaves as it is told: what lies between a client and a busy cluster.

It runs in the test's own loop, speaks plain HTTP on loopback, and signs in to the server as the administrator.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

from cluster import Cluster

_HOP = {"transfer-encoding", "content-length", "content-encoding", "connection", "host"}


@dataclass(frozen=True, slots=True)
class Call:
    """One request as the proxy sees it."""

    method: str
    path: str
    query: str
    number: int
    """How many of this method came before it."""

    @property
    def is_watch(self) -> bool:
        return "watch=" in self.query

    @property
    def makes_pod(self) -> bool:
        return self.method == "POST" and self.path.endswith("/pods")

    @property
    def deletes(self) -> bool:
        return self.method == "DELETE" and "/pods" in self.path


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer in the server's place."""

    status: int
    retry_after_s: int | None = None
    reason: str = "Unknown"


@dataclass(frozen=True, slots=True)
class LoseAnswer:
    """The server does it, but nobody hears of it."""


@dataclass(frozen=True, slots=True)
class Stale:
    """A watch ends at once with an ERROR event: the version asked for is too old (410)."""


Act = Refuse | LoseAnswer | Stale | None
Rule = Callable[[Call], Act]


@dataclass(slots=True, eq=False)
class Proxy:
    """`rule` decides what happens to each request; None passes everything."""

    kubeconfig: Path
    rule: Rule | None = None
    acted: Counter[str] = field(default_factory=Counter)
    """How often it did what, by class: a test must see that its fault happened."""
    seen: Counter[str] = field(default_factory=Counter)
    _transports: set[asyncio.Transport] = field(default_factory=set)

    def cut_watches(self) -> int:
        """Break every open watch in the middle; how many."""
        transports, self._transports = self._transports, set()
        for transport in transports:
            transport.abort()
        return len(transports)

    def decide(self, request: web.Request) -> Act:
        call = Call(request.method, request.path, request.query_string, self.seen[request.method])
        self.seen[request.method] += 1
        act = self.rule(call) if self.rule is not None else None
        if act is not None:
            self.acted[type(act).__name__] += 1
        return act

    async def handle(self, request: web.Request, session: aiohttp.ClientSession, server: str) -> web.StreamResponse:
        act, body = self.decide(request), await request.read()
        if isinstance(act, Refuse):
            headers = {} if act.retry_after_s is None else {"Retry-After": str(act.retry_after_s)}
            status = {"kind": "Status", "status": "Failure", "code": act.status, "reason": act.reason, "message": "told so"}
            return web.json_response(status, status=act.status, headers=headers)
        if isinstance(act, Stale):
            status = {"kind": "Status", "status": "Failure", "code": 410, "reason": "Expired", "message": "too old"}
            return web.Response(text=json.dumps({"type": "ERROR", "object": status}) + "\n", content_type="application/json")
        headers = {name: value for name, value in request.headers.items() if name.lower() not in _HOP}
        async with session.request(request.method, server + str(request.rel_url), data=body or None, headers=headers) as answer:
            if isinstance(act, LoseAnswer):
                await answer.read()
                assert request.transport is not None
                request.transport.abort()
                return web.Response(status=502)
            return await self._pass_on(request, answer)

    async def _pass_on(self, request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
        headers = {name: value for name, value in answer.headers.items() if name.lower() not in _HOP}
        response = web.StreamResponse(status=answer.status, headers=headers)
        await response.prepare(request)
        transport = request.transport
        if "watch=" in request.query_string and isinstance(transport, asyncio.Transport):
            self._transports.add(transport)
        try:
            with suppress(ConnectionError, aiohttp.ClientError):  # either side may leave at any time
                async for part in answer.content.iter_any():
                    await response.write(part)
        finally:
            if isinstance(transport, asyncio.Transport):
                self._transports.discard(transport)
        return response


@asynccontextmanager
async def proxied(cluster: Cluster, folder: Path) -> AsyncIterator[Proxy]:
    """A proxy before this cluster, with a kubeconfig that leads through it."""
    pki, server = cluster.layout.pki, cluster.layout.server
    tls = ssl.create_default_context(cafile=str(pki / "ca.crt"))
    tls.load_cert_chain(pki / "admin.crt", pki / "admin.key")
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    proxy = Proxy(folder / "kubeconfig")
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None), auto_decompress=True) as s:
        application = web.Application(client_max_size=64 * 2**20)

        async def handle(request: web.Request) -> web.StreamResponse:
            return await proxy.handle(request, s, server)

        application.router.add_route("*", "/{path:.*}", handle)
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        assert site._server is not None
        port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
        proxy.kubeconfig.write_text(yaml.safe_dump(_config(f"http://127.0.0.1:{port}")))
        try:
            yield proxy
        finally:
            proxy.cut_watches()
            await runner.cleanup()


def _config(server: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "proxied",
        "clusters": [{"name": "proxied", "cluster": {"server": server}}],
        "users": [{"name": "proxied", "user": {}}],
        "contexts": [{"name": "proxied", "context": {"cluster": "proxied", "user": "proxied"}}],
    }
