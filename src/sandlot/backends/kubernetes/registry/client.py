"""Pushing to an image registry: OCI Distribution Specification 1.1 over aiohttp, blobs streamed from disk.

A push that fails half-way is simply done again: a HEAD a blob finds what has arrived.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Final, TypeVar

import aiohttp
import msgspec
from yarl import URL

from sandlot.backends.kubernetes.noticing import Notice, log_notice
from sandlot.backends.kubernetes.registry.credentials import Credentials, find_credentials
from sandlot.backends.kubernetes.registry.names import Repository
from sandlot.errors import BadRequest, Denied, ImageInvalid, Infrastructure, RegistryFault, SandlotError, Throttled
from sandlot.images.tarstream import Malformed

CONNECTIONS: Final = 8  # blobs under way at once; registries throttle beyond a handful
TRIES: Final = 4
FIRST_PAUSE_S: Final = 0.5  # before the second try; doubled each time
_LONGEST_PAUSE_S: Final = 30.0
PATIENCE_S: Final = 45.0  # what has failed for so long is not tried again, unless a blob is on its way
_CONNECT_S: Final = 5.0  # a lost SYN is sent again after 1 s and 3 s
_ANSWER_S: Final = 30.0  # to what carries no blob
_SILENCE_S: Final = 300.0  # a registry on object storage may verify a large blob for minutes before it answers
_CHUNK_BYTES: Final = 1_048_576
_MAX_ANSWER_BYTES: Final = 65_536
_MAX_TOKEN_BYTES: Final = 65_536

Sent = Callable[[int], None]
"""Called with the bytes of each piece that was handed to the socket."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes to be pushed: `open` gives them from the start, each time it is called, in a thread."""

    digest: str
    size: int
    open: Callable[[], BinaryIO]


class Registry:
    """One repository of a registry. Use it as `async with`; all methods may be called concurrently.

    Every method raises:
        Denied: the registry wants credentials that are not there, or refuses those that are.
        RegistryFault, Throttled: it cannot be reached or fails, after `TRIES` tries or `PATIENCE_S`; pushing again is safe.
        BadRequest: it says that what is asked makes no sense.
    """

    def __init__(
        self,
        repository: Repository,
        credentials: Callable[[str], Credentials | None] = find_credentials,
        *,
        first_pause_s: float = FIRST_PAUSE_S,
        notice: Notice = log_notice,
    ) -> None:
        """`notice` is told of each failure that is followed by another try."""
        self.repository: Final = repository
        self._notice = notice
        self._find_credentials = credentials
        self._first_pause_s = first_pause_s
        self._session: aiohttp.ClientSession | None = None
        self._authorization: str | None = None
        self._logging_in = asyncio.Lock()

    async def __aenter__(self) -> Registry:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=_ANSWER_S)
        # Proxies of the environment are for what lies outside; a loopback address never does.
        self._session = aiohttp.ClientSession(
            timeout=timeout,
            trust_env=not self.repository.plain,
            connector=aiohttp.TCPConnector(limit=CONNECTIONS),
            headers={"User-Agent": "sandlot"},
        )
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._session is not None:
            await self._session.close()

    # --- what callers want ----------------------------------------------------------------------------------------------
    async def check(self) -> None:
        """Ask whether there is a registry that speaks this protocol and takes the credentials at hand."""
        await self._persist(self._check)

    async def has_blob(self, digest: str) -> bool:
        return await self._persist(lambda: self._exists(f"blobs/{digest}"))

    async def has_manifest(self, reference: str) -> bool:
        """Whether a tag or digest names an image."""
        return await self._persist(lambda: self._exists(f"manifests/{reference}"))

    async def push_blob(self, blob: Blob, sent: Sent | None = None) -> bool:
        """Store a blob; False when it was there already.

        Raises:
            ImageInvalid: its bytes are not those that its digest promises.
        """
        return await self._persist(lambda: self._push_blob(blob, sent or _nobody), patience_s=math.inf)

    async def push_manifest(self, reference: str, media_type: str, raw: bytes) -> None:
        """Store a manifest under a tag or its digest; every blob it names must have been pushed."""
        await self._persist(lambda: self._push_manifest(reference, media_type, raw))

    # --- one try ----------------------------------------------------------------------------------------------------------
    async def _check(self) -> None:
        async with self._request("GET", URL(f"{self.repository.origin}/v2/")) as answer:
            if answer.status == 404:
                raise BadRequest(f"{self.repository.host} is no image registry: it has no /v2/")
            await _require(answer, 200, what=f"registry {self.repository.host}")

    async def _exists(self, path: str) -> bool:
        async with self._request("HEAD", self._url(path), headers={"Accept": ", ".join(_MANIFESTS)}) as answer:
            if answer.status == 404:
                return False
            await _require(answer, 200, what=f"{path} in {self.repository.text}")
            return True

    async def _push_blob(self, blob: Blob, sent: Sent) -> bool:
        if await self._exists(f"blobs/{blob.digest}"):
            return False
        what = f"blob {blob.digest} to {self.repository.text}"
        async with self._request("POST", self._url("blobs/uploads/"), headers={"Content-Length": "0"}) as answer:
            await _require(answer, 202, what=what)
            place = self._location(answer)
        # The place may have a query of its own that must stay as it is, character for character (the specification's words).
        place = URL(f"{place}{'&' if place.query_string else '?'}digest={blob.digest}", encoded=True)
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(blob.size)}
        reading = _Reading(blob, sent)
        try:
            async with self._request("PUT", place, headers=headers, body=reading.pieces, silence_s=_SILENCE_S) as answer:
                await _require(answer, 201, what=what)
        except aiohttp.ClientError:
            reading.check()
            raise
        return True

    async def _push_manifest(self, reference: str, media_type: str, raw: bytes) -> None:
        url = self._url(f"manifests/{reference}")
        async with self._request("PUT", url, headers={"Content-Type": media_type}, body=lambda: raw) as answer:
            await _require(answer, 201, what=f"manifest {reference} to {self.repository.text}")

    # --- how requests are made --------------------------------------------------------------------------------------------
    def _url(self, path: str) -> URL:
        return URL(f"{self.repository.origin}/v2/{self.repository.path}/{path}", encoded=True)

    def _location(self, answer: aiohttp.ClientResponse) -> URL:
        told = answer.headers.get("Location", "")
        if not told:
            raise RegistryFault(f"{self.repository.host} began an upload and did not say where")
        return answer.url.join(URL(told, encoded=True))

    @asynccontextmanager
    async def _request(
        self,
        method: str,
        url: URL,
        *,
        headers: Mapping[str, str] | None = None,
        body: Callable[[], object] | None = None,
        silence_s: float = _ANSWER_S,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """One request; asked for credentials it finds them and asks once more."""
        assert self._session is not None, "use it as `async with`"
        session = self._session
        # An upload may go to a storage service of somebody else, which our credentials are none of.
        ours = url.origin() == URL(self.repository.origin).origin()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S, sock_read=silence_s)
        for again in (False, True):
            used = self._authorization if ours else None
            sent = dict(headers or {}) | ({"Authorization": used} if used else {})
            data = None if body is None else body()
            async with session.request(
                method, url, headers=sent, data=data, allow_redirects=method in ("GET", "HEAD"), timeout=timeout
            ) as answer:
                if answer.status != 401 or again or not ours:
                    yield answer
                    return
                challenge = answer.headers.getall("WWW-Authenticate", [])
            await self._log_in(challenge, used)

    async def _log_in(self, challenge: list[str], used: str | None) -> None:
        async with self._logging_in:
            if self._authorization != used:
                return  # somebody else did it meanwhile
            found = await asyncio.to_thread(self._find_credentials, self.repository.host)
            self._authorization = await self._answer(challenge, found)

    async def _answer(self, challenge: list[str], found: Credentials | None) -> str:
        """The `Authorization` that a challenge asks for: basic, or a bearer token from where it says."""
        for one in challenge:
            scheme, _, rest = one.partition(" ")
            if scheme.lower() == "bearer":
                return await self._fetch_token(dict(_PARAMETER.findall(rest)), found)
        if found is None:
            hint = f"log in to it first (docker login {self.repository.host})"
            raise Denied(f"registry {self.repository.host} wants credentials and none are stored for it", hint=hint)
        return found.basic

    async def _fetch_token(self, told: dict[str, str], found: Credentials | None) -> str:
        """Docker Registry v2 token authentication."""
        assert self._session is not None
        host, realm = self.repository.host, URL(told.get("realm", ""))
        if realm.scheme != "https" and not (self.repository.plain and realm.scheme == "http"):
            raise RegistryFault(
                f"registry {self.repository.host} sends for a token to {told.get('realm')!r}, which is not safe"
            )
        scope = f"repository:{self.repository.path}:pull,push"
        wanted = {"service": told.get("service", ""), "scope": scope}
        if found is not None and found.identity_token:
            form = wanted | {"grant_type": "refresh_token", "refresh_token": found.identity_token, "client_id": "sandlot"}
            request = self._session.post(realm, data=form)
        else:
            headers = {"Authorization": found.basic} if found else {}
            request = self._session.get(realm, params=wanted, headers=headers)
        async with request as answer:
            if answer.status in (400, 401, 403):
                why = "the credentials stored for it were refused" if found else "no credentials are stored for it"
                hint = f"log in to it again (docker login {self.repository.host})"
                raise Denied(
                    f"registry {self.repository.host} gives no right to push to {self.repository.path}: {why}", hint=hint
                )
            await _require(answer, 200, what=f"token for {self.repository.host}")
            raw = await answer.content.read(_MAX_TOKEN_BYTES)
        try:
            token = msgspec.json.decode(raw, type=_Token)
        except msgspec.MsgspecError as error:
            raise RegistryFault(f"the token for {host} cannot be read: {error}") from error
        return f"Bearer {token.token or token.access_token}"

    async def _persist(self, once: Callable[[], Awaitable[_T]], *, patience_s: float = PATIENCE_S) -> _T:
        """Try again what may succeed later, with growing pauses or as long as the registry says."""
        pause_s, clock = self._first_pause_s, asyncio.get_running_loop().time
        give_up_s = clock() + patience_s
        for tries_left in range(TRIES - 1, -1, -1):
            try:
                return await once()
            except (aiohttp.ClientError, TimeoutError, ConnectionError, Infrastructure) as error:
                failed = self._told(error)
                if not tries_left or clock() >= give_up_s:
                    raise failed from error
                self._notice(f"{failed.message}; try {TRIES - tries_left + 1} of {TRIES} follows")
                asked_s = failed.retry_after_s if isinstance(failed, Throttled) else None
            await asyncio.sleep(min(asked_s if asked_s is not None else pause_s, _LONGEST_PAUSE_S))
            pause_s *= 2
        raise AssertionError("unreachable")

    def _told(self, error: BaseException) -> SandlotError:
        if isinstance(error, SandlotError):
            return error
        why = str(error) or type(error).__name__
        hint = "is it running, and is its address right (--registry)?"
        return RegistryFault(f"registry {self.repository.host} cannot be reached: {why}", hint=hint)


_PARAMETER: Final = re.compile(r'([A-Za-z_]+)="([^"]*)"')
_MANIFESTS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)


class _Token(msgspec.Struct, frozen=True):
    token: str = ""
    access_token: str = ""


class _Fault(msgspec.Struct, frozen=True):
    code: str = ""
    message: str = ""


class _Faults(msgspec.Struct, frozen=True):
    errors: list[_Fault] = []


async def _require(answer: aiohttp.ClientResponse, status: int, *, what: str) -> None:
    """Pass when the answer is the one that was to come; else raise what it means."""
    if answer.status == status:
        return
    said = _said(await answer.content.read(_MAX_ANSWER_BYTES)) or answer.reason or ""
    message = f"{what}: the registry answered {answer.status}{f' ({said})' if said else ''}"
    if answer.status == 429:
        raise Throttled(message, retry_after_s=_seconds(answer.headers.get("Retry-After", "")))
    if answer.status >= 500:
        raise RegistryFault(message)
    if answer.status in (401, 403):
        raise Denied(message, hint="the credentials stored for it give no right to push there")
    if "DIGEST_INVALID" in said or "SIZE_INVALID" in said:
        raise ImageInvalid(message, hint="the image is damaged, or its files changed while they were read")
    raise BadRequest(message)


def _said(raw: bytes) -> str:
    """The registry's own words, cut short; it is not ours and may say anything."""
    try:
        faults = msgspec.json.decode(raw, type=_Faults).errors
    except msgspec.MsgspecError:
        return ""
    return "; ".join(f"{fault.code}: {fault.message}" for fault in faults[:3])[:300]


def _seconds(text: str) -> float | None:
    return float(text) if text.strip().isdigit() else None


class _Reading:
    """A blob's bytes for the socket. A file that fails is not the network's fault, which is all that aiohttp would say."""

    def __init__(self, blob: Blob, sent: Sent) -> None:
        self._blob, self._sent = blob, sent
        self._failed: Exception | None = None

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            file = await asyncio.to_thread(self._blob.open)
            try:
                while piece := await asyncio.to_thread(file.read, _CHUNK_BYTES):
                    yield piece
                    self._sent(len(piece))
            finally:
                file.close()
        except (OSError, Malformed) as error:
            self._failed = error
            raise

    def check(self) -> None:
        """Raise `ImageInvalid` when it was the file."""
        if self._failed is not None:
            raise ImageInvalid(f"blob {self._blob.digest} cannot be read: {self._failed}") from self._failed


def _nobody(_count: int) -> None:
    """Nobody shows progress."""
