"""The Kubernetes API as JSON over HTTP: bytes out, and of what comes back only the parts that are used.

One `Api` is one bounded pool of connections, and beside it connections for what stays open (watches, exec streams), so
that these never use the pool up. Nothing is tried twice here but what the server refused for stale credentials.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

import msgspec

from sandlot.backends.kubernetes.api_errors import ApiDenied, refused, unreachable
from sandlot.backends.kubernetes.credentials import INSTALL_HINT, Credentials, Load
from sandlot.backends.kubernetes.objects import Status
from sandlot.backends.kubernetes.server_time import ServerClock
from sandlot.errors import Closed, ProtocolViolation, Unsupported

if TYPE_CHECKING:
    import aiohttp

T = TypeVar("T")
Query = Mapping[str, str]

POOL: Final = 64
"""Requests under way at a time. The server's own default is 600 for everybody (400 reading and 200 changing)."""
CONNECT_S: Final = 10.0
ANSWER_S: Final = 35.0  # the server itself gives most requests up after 34 s (its deadline for changing requests)
WATCH_SILENCE_S: Final = 150.0  # bookmarks come about once a minute: after two that did not, the connection is dead
MAX_LINE_BYTES: Final = 4 * 2**20  # of a watch; the largest object that etcd takes has 1.5 MiB
_READ_BYTES: Final = 2**18

MERGE_PATCH: Final = "application/merge-patch+json"
JSON: Final = "application/json"


@lru_cache(maxsize=64)
def _made(shape: type[Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(shape)


def _decoder(shape: type[T]) -> msgspec.json.Decoder[T]:
    return _made(shape)  # type: ignore[arg-type]  # a class is hashable


class _Way(TypedDict):
    """How a request reaches the server, in aiohttp's words."""

    ssl: ssl.SSLContext | bool
    server_hostname: str | None
    proxy: str | None


class Api:
    """A client of one API server. Make it with `await Api.open(load)`; close it with `aclose`."""

    def __init__(self, load: Load, credentials: Credentials, *, pool: int = POOL) -> None:
        import aiohttp

        self.clock: Final = ServerClock(asyncio.get_running_loop().time)
        self.sent: Final[Counter[str]] = Counter()
        """Requests by method, whatever became of them."""
        self._load, self._credentials = load, credentials
        self._reloading: asyncio.Task[Credentials] | None = None
        short = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=ANSWER_S)
        lasting = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S, sock_read=WATCH_SILENCE_S)
        self._requests = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=pool), timeout=short)
        self._streams = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0), timeout=lasting, read_bufsize=_READ_BYTES
        )

    @classmethod
    async def open(cls, load: Load, *, pool: int = POOL) -> Api:
        """Read the credentials; nothing is sent yet.

        Raises:
            Unsupported: there are none, or the `kubernetes` extra is not installed.
        """
        credentials = await load()
        try:
            return cls(load, credentials, pool=pool)
        except ImportError as error:
            raise Unsupported("Kubernetes needs packages that are not installed", hint=INSTALL_HINT) from error

    async def aclose(self) -> None:
        """Close every connection. Idempotent."""
        if self._reloading is not None:
            self._reloading.cancel()
        try:
            await self._requests.close()
        finally:
            await self._streams.close()

    async def __aenter__(self) -> Api:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        await self.aclose()

    @property
    def credentials(self) -> Credentials:
        """Those in use now."""
        return self._credentials

    # --- requests -----------------------------------------------------------------------------------------------------
    async def get(self, path: str, shape: type[T], *, query: Query | None = None) -> T:
        """Raises an `ApiError`, as all of these do."""
        return self._decoded(await self.request("GET", path, query=query), shape)

    async def post(self, path: str, body: bytes, shape: type[T], *, query: Query | None = None) -> T:
        """Make an object from finished JSON."""
        return self._decoded(await self.request("POST", path, body=body, query=query), shape)

    async def patch(self, path: str, body: bytes, shape: type[T]) -> T:
        """Change an object by a JSON merge patch."""
        return self._decoded(await self.request("PATCH", path, body=body, content_type=MERGE_PATCH), shape)

    async def delete(self, path: str, shape: type[T], *, body: bytes | None = None, query: Query | None = None) -> T:
        """Delete an object, or with a query a collection. The answer is the object as it was, or a `Status`."""
        return self._decoded(await self.request("DELETE", path, body=body, query=query), shape)

    async def request(
        self, method: str, path: str, *, body: bytes | None = None, query: Query | None = None, content_type: str = JSON
    ) -> bytes:
        """One request, one whole answer.

        Raises:
            ApiThrottled, ApiUnavailable, ApiUnreachable, ApiConflict, ApiFull, ApiExpired: retriable infrastructure.
            ApiDenied, ApiInvalid, ApiNotFound, ApiExists: not to be repeated as it is.
        """
        for fresh in (False, True):
            try:
                return await self._send(method, path, body=body, query=query, content_type=content_type)
            except ApiDenied as error:
                if error.status != 401 or fresh:
                    raise
                await self._reload()
        raise AssertionError("unreachable: the second refusal is raised")

    async def _send(self, method: str, path: str, *, body: bytes | None, query: Query | None, content_type: str) -> bytes:
        import aiohttp

        self.sent[method] += 1
        headers = {**self._credentials.headers, "Accept": JSON}
        if body is not None:
            headers["Content-Type"] = content_type
        try:
            async with self._requests.request(
                method, self._credentials.server + path, params=query, data=body, headers=headers, **self._way()
            ) as response:
                data = await response.read()
                self._check(response, f"{method} {path}", data)
                return data
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(self._credentials.server, error) from error
        except RuntimeError as error:  # what aiohttp says when its session is closed
            raise Closed("the connection to the API server was closed by this client") from error

    # --- what stays open ----------------------------------------------------------------------------------------------
    @asynccontextmanager
    async def watch(self, path: str, query: Query) -> AsyncGenerator[AsyncGenerator[list[bytes], None], None]:
        """Follow a collection from `resourceVersion` in the query on, until the server ends it: whole lines, one event each,
        all that have come together.

        Raises:
            ApiExpired: that version is too old. An error in mid-stream is the last event, of type `ERROR`.
        """
        response = await self._open_stream(path, {**query, "watch": "1", "allowWatchBookmarks": "true"})
        import aiohttp

        try:
            yield self._lines(response)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(self._credentials.server, error) from error
        finally:
            response.close()

    async def _open_stream(self, path: str, query: Query) -> aiohttp.ClientResponse:
        import aiohttp

        for fresh in (False, True):
            self.sent["WATCH"] += 1
            headers = {**self._credentials.headers, "Accept": JSON}
            try:
                response = await self._streams.get(
                    self._credentials.server + path, params=query, headers=headers, **self._way()
                )
                data = b"" if response.status == 200 else await response.read()
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                raise unreachable(self._credentials.server, error) from error
            if response.status != 401 or fresh:
                self._check(response, f"WATCH {path}", data)
                return response
            await self._reload()
        raise AssertionError("unreachable: the second answer is returned or raised")

    async def _lines(self, response: aiohttp.ClientResponse) -> AsyncGenerator[list[bytes], None]:
        parts: list[bytes] = []  # of the line that is not whole yet
        held = 0
        async for chunk in response.content.iter_any():
            parts.append(chunk)
            held += len(chunk)
            if b"\n" in chunk:
                *lines, tail = b"".join(parts).split(b"\n")
                parts, held = [tail], len(tail)
                yield [line for line in lines if line]
            if held > MAX_LINE_BYTES:
                raise ProtocolViolation(f"the API server sent a line of more than {MAX_LINE_BYTES} bytes")

    async def websocket(
        self, path: str, query: Sequence[tuple[str, str]], protocols: Sequence[str]
    ) -> aiohttp.ClientWebSocketResponse:
        """Open a stream into a pod, such as `exec`. The caller closes it."""
        import aiohttp

        self.sent["CONNECT"] += 1
        try:
            return await self._streams.ws_connect(
                self._credentials.server + path,
                params=query,
                protocols=protocols,
                headers=self._credentials.headers,
                max_msg_size=0,
                **self._way(),
            )
        except aiohttp.WSServerHandshakeError as error:
            raise refused(f"CONNECT {path}", error.status, Status(message=error.message), None) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise unreachable(self._credentials.server, error) from error

    # --- inside -------------------------------------------------------------------------------------------------------
    def _way(self) -> _Way:
        now = self._credentials
        return {"ssl": now.tls if now.tls is not None else True, "server_hostname": now.server_name, "proxy": now.proxy}

    def _check(self, response: aiohttp.ClientResponse, doing: str, data: bytes) -> None:
        self.clock.observe(response.headers.get("Date", ""))
        if response.status < 300:
            return
        try:
            said = _decoder(Status).decode(data)
        except msgspec.DecodeError:  # a proxy's page, or nothing
            said = Status(message=data[:256].decode("utf-8", "replace") or None)
        raise refused(doing, response.status, said, response.headers.get("Retry-After"))

    def _decoded(self, data: bytes, shape: type[T]) -> T:
        try:
            return _decoder(shape).decode(data)
        except msgspec.DecodeError as error:
            raise ProtocolViolation(f"the API server's answer is not understood: {error}") from error

    async def _reload(self) -> None:
        """Read the credentials anew; whoever was refused meanwhile waits for the same reading."""
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._load_once(), name="read the credentials")
        await asyncio.shield(self._reloading)

    async def _load_once(self) -> Credentials:
        self._credentials = await self._load()
        return self._credentials
