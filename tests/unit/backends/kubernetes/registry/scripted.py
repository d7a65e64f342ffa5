"""A registry in this process that can be told to fail: what a real one does only once in a while."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.test_utils import TestServer


@dataclass(frozen=True)
class Answer:
    """One answer that is not what was hoped for."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    text: str = ""

    def response(self) -> web.Response:
        return web.Response(status=self.status, headers=dict(self.headers), text=self.text)


@dataclass
class ScriptedRegistry:
    """Enough of the OCI distribution protocol to be pushed to."""

    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    failures: list[Answer | str] = field(default_factory=list)
    """Answers to the next requests, in order; `"hang up"` breaks the connection, `"silence"` never answers."""
    calls: Counter[str] = field(default_factory=Counter)
    """By method and kind of path."""
    realm: str = ""
    """Where tokens are had, once they are asked for."""
    token: str = ""
    """None but this one is taken; empty: all may do everything."""
    asked_for_tokens: list[dict[str, str]] = field(default_factory=list)

    def application(self) -> web.Application:
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/token", self._give_token)
        app.router.add_route("*", "/v2/{path:.*}", self._answer)
        return app

    async def _give_token(self, request: web.Request) -> web.StreamResponse:
        self.asked_for_tokens.append(dict(request.query) | {"authorization": request.headers.get("Authorization", "")})
        return web.json_response({"token": self.token})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        kind = next((word for word in ("uploads", "blobs", "manifests") if word in request.path), "base")
        self.calls[f"{request.method} {kind}"] += 1
        if self.failures:
            failure = self.failures.pop(0)
            if failure == "silence":
                await asyncio.sleep(86_400)
            if isinstance(failure, str):
                assert request.transport is not None
                request.transport.abort()
                return web.Response()
            await request.read()
            return failure.response()
        if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
            challenge = f'Bearer realm="{self.realm}",service="scripted",scope="ignored"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        return await getattr(self, f"_{request.method.lower()}_{kind}")(request)  # type: ignore[no-any-return]

    async def _get_base(self, _request: web.Request) -> web.StreamResponse:
        return web.json_response({})

    async def _head_blobs(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=200 if request.path.rpartition("/")[2] in self.blobs else 404)

    async def _head_manifests(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=200 if request.path.rpartition("/")[2] in self.manifests else 404)

    async def _post_uploads(self, request: web.Request) -> web.StreamResponse:
        return web.Response(status=202, headers={"Location": f"{request.path}one?state=a%2Fb"})

    async def _put_uploads(self, request: web.Request) -> web.StreamResponse:
        data, digest = await request.read(), request.query["digest"]
        assert "state=a%2Fb" in request.raw_path, "the place of an upload must come back character for character"
        if f"sha256:{hashlib.sha256(data).hexdigest()}" != digest:
            return web.json_response({"errors": [{"code": "DIGEST_INVALID", "message": "no"}]}, status=400)
        self.blobs[digest] = data
        return web.Response(status=201)

    async def _put_manifests(self, request: web.Request) -> web.StreamResponse:
        self.manifests[request.path.rpartition("/")[2]] = await request.read()
        return web.Response(status=201)


async def serve(registry: ScriptedRegistry) -> TestServer:
    """On a loopback port, until it is closed."""
    server = TestServer(registry.application(), host="127.0.0.1")
    await server.start_server()
    registry.realm = str(server.make_url("/token"))
    return server
