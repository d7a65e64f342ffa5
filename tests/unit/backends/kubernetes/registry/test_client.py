"""Pushing to a registry that fails."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandlot.backends.kubernetes.registry import Blob, Registry, parse_repository
from sandlot.backends.kubernetes.registry.client import PATIENCE_S, TRIES
from sandlot.backends.kubernetes.registry.credentials import Credentials
from sandlot.errors import BadRequest, Denied, ImageInvalid, RegistryFault, Throttled
from tests.unit.backends.kubernetes.registry.scripted import Answer, ScriptedRegistry, serve

DATA = b"some bytes" * 100_000


def blob(data: bytes = DATA, digest: str = "") -> Blob:
    return Blob(digest or f"sha256:{hashlib.sha256(data).hexdigest()}", len(data), lambda: io.BytesIO(data))


def nothing_stored(_host: str) -> Credentials | None:
    return None


@pytest.fixture
def scripted() -> ScriptedRegistry:
    return ScriptedRegistry()


@pytest.fixture
async def registry(scripted: ScriptedRegistry) -> AsyncIterator[Registry]:
    server = await serve(scripted)
    repository = parse_repository(f"127.0.0.1:{server.port}/a/b")
    async with Registry(repository, nothing_stored, first_pause_s=0.0) as registry:
        yield registry
    await server.close()


async def test_a_blob_is_sent_once(registry: Registry, scripted: ScriptedRegistry) -> None:
    """A second push finds it by one HEAD."""
    seen: list[int] = []
    assert await registry.push_blob(blob(), seen.append)
    assert sum(seen) == len(DATA)
    assert not await registry.push_blob(blob(), seen.append)
    assert scripted.blobs == {blob().digest: DATA}
    assert (scripted.calls["PUT uploads"], sum(seen)) == (1, len(DATA))


@pytest.mark.parametrize(
    "failure", [Answer(status=500), Answer(status=503), Answer(status=429, headers=(("Retry-After", "0"),)), "hang up"]
)
@pytest.mark.parametrize("before", [0, 1, 2])
async def test_what_fails_once_is_tried_again(
    registry: Registry, scripted: ScriptedRegistry, failure: Answer | str, before: int
) -> None:
    """Whichever of HEAD, POST and PUT it was."""
    script: list[Answer | str] = [failure]
    answers = [Answer(status=404), Answer(status=202, headers=(("Location", "/v2/a/b/blobs/uploads/one?state=a%2Fb"),))]
    scripted.failures[:] = [*answers[:before], *script]
    assert await registry.push_blob(blob())
    assert scripted.blobs == {blob().digest: DATA}


async def test_a_failure_that_stays_is_told_after_a_few_tries(registry: Registry, scripted: ScriptedRegistry) -> None:
    """Infrastructure, retriable, in the registry's own words."""
    body = '{"errors": [{"code": "UNAVAILABLE", "message": "disk full"}]}'
    scripted.failures[:] = [Answer(status=503, text=body) for _ in range(TRIES)]
    with pytest.raises(RegistryFault, match="disk full"):
        await registry.push_manifest("x", "application/json", b"{}")
    assert scripted.calls["PUT manifests"] == TRIES


async def test_throttling_that_stays_says_how_long(registry: Registry, scripted: ScriptedRegistry) -> None:
    """So that whoever waits may wait that long."""
    scripted.failures[:] = [Answer(status=429, headers=(("Retry-After", "0"),)) for _ in range(TRIES)]
    with pytest.raises(Throttled) as caught:
        await registry.has_manifest("x")
    assert caught.value.retry_after_s == 0.0


async def test_nobody_there_is_infrastructure() -> None:
    """With what to look at; whoever waits is told of each try meanwhile."""
    told: list[str] = []
    repository = parse_repository("127.0.0.1:9/a")
    async with Registry(repository, nothing_stored, first_pause_s=0.0, notice=told.append) as registry:
        with pytest.raises(RegistryFault, match="cannot be reached") as caught:
            await registry.check()
    assert "--registry" in caught.value.hint
    assert [text.partition("; ")[2] for text in told] == [f"try {n} of {TRIES} follows" for n in range(2, TRIES + 1)]


@pytest.mark.looptime(noop_cycles=300)  # both ends of real sockets are here: bytes may be on their way
async def test_a_registry_that_never_answers_is_given_up() -> None:
    """Within a minute or so: it took the connection, which is no sign that it lives."""
    scripted, told = ScriptedRegistry(failures=["silence"] * TRIES), list[str]()
    server = await serve(scripted)
    repository, clock = parse_repository(f"127.0.0.1:{server.port}/a"), asyncio.get_running_loop().time
    async with Registry(repository, nothing_stored, notice=told.append) as registry:
        began_s = clock()
        with pytest.raises(RegistryFault, match="cannot be reached"):
            await registry.has_manifest("x")
        assert PATIENCE_S <= clock() - began_s < 2 * PATIENCE_S
    assert 0 < len(told) < TRIES - 1
    await server.close()


async def test_bytes_that_are_not_what_was_promised_are_refused(registry: Registry, scripted: ScriptedRegistry) -> None:
    """At once: trying again would send the same."""
    with pytest.raises(ImageInvalid):
        await registry.push_blob(blob(digest="sha256:" + "0" * 64))
    assert (scripted.blobs, scripted.calls["PUT uploads"]) == ({}, 1)


async def test_a_token_is_fetched_once_and_used(registry: Registry, scripted: ScriptedRegistry) -> None:
    """From where the challenge says, for pushing to this repository."""
    scripted.token = "t"
    assert await registry.push_blob(blob())
    await registry.push_manifest("x", "application/json", b"{}")
    assert [one["scope"] for one in scripted.asked_for_tokens] == ["repository:a/b:pull,push"]
    assert scripted.manifests == {"x": b"{}"}


async def test_a_token_that_has_run_out_is_fetched_anew(registry: Registry, scripted: ScriptedRegistry) -> None:
    """They live for minutes; large pushes live longer."""
    scripted.token = "one"
    assert not await registry.has_blob(blob().digest)
    scripted.token = "two"
    assert await registry.push_blob(blob())
    assert len(scripted.asked_for_tokens) == 2


async def test_a_token_is_not_fetched_from_just_anywhere(registry: Registry, scripted: ScriptedRegistry) -> None:
    """The registry names the place, and gets our password there: never over plain HTTP but from a plain registry."""
    scripted.token, scripted.realm = "t", "ftp://127.0.0.1/token"
    with pytest.raises(RegistryFault, match="not safe"):
        await registry.has_blob(blob().digest)


async def test_missing_credentials_say_how_to_get_them(registry: Registry, scripted: ScriptedRegistry) -> None:
    """A basic challenge and nothing stored."""
    scripted.failures[:] = [Answer(status=401, headers=(("WWW-Authenticate", 'Basic realm="x"'),))]
    with pytest.raises(Denied, match="docker login"):
        await registry.has_blob(blob().digest)


async def test_a_refusal_is_not_tried_again(registry: Registry, scripted: ScriptedRegistry) -> None:
    """403 will be 403."""
    scripted.failures[:] = [Answer(status=403), Answer(status=403)]
    with pytest.raises(Denied):
        await registry.push_manifest("x", "application/json", b"{}")
    assert len(scripted.failures) == 1


async def test_a_file_that_cannot_be_read_is_not_the_registrys_fault(registry: Registry, tmp_path: Path) -> None:
    """It is not dressed up as a network that failed."""
    missing = Blob("sha256:" + "0" * 64, 3, (tmp_path / "missing").open)  # type: ignore[arg-type] # it is never read
    with pytest.raises(ImageInvalid, match="missing"):
        await registry.push_blob(missing)


async def test_what_is_no_registry_is_said(registry: Registry, scripted: ScriptedRegistry) -> None:
    """A web server that knows no /v2/."""
    scripted.failures[:] = [Answer(status=404)]
    with pytest.raises(BadRequest, match="no image registry"):
        await registry.check()
