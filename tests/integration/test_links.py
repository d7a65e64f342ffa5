"""Links that break again and again under every kind of call, on real sandboxes: nothing is lost, nothing runs twice."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import sandlot.sync
from sandlot import Provider, Sandbox, Spec

SPEC = Spec(image="host", limits="best-effort")


@pytest.fixture
async def box(provider: Provider) -> AsyncIterator[Sandbox]:
    """A sandbox of this machine's own system."""
    async with await provider.create(SPEC) as made:
        yield made


@asynccontextmanager
async def cuts(box: Sandbox, *, pause_s: float = 0.02, most: int = 1_000_000) -> AsyncIterator[None]:
    """While the block runs, its link is cut again and again; at least three times, at most `most` times."""
    before = box.connection.links_lost

    async def cut() -> None:
        for _ in range(most):
            await asyncio.sleep(pause_s)
            box.connection.abort()

    cutting = asyncio.create_task(cut())
    try:
        yield
        async with asyncio.timeout(60):
            while box.connection.links_lost - before < 3:  # noqa: ASYNC110 - on a slow machine cuts are slow too
                await asyncio.sleep(pause_s)
    finally:
        cutting.cancel()
        await asyncio.wait([cutting])


async def test_streamed_output_is_whole(box: Sandbox) -> None:
    """Every byte once, in order, on both streams."""
    script = "i=0; while [ $i -lt 60 ]; do head -c 200000 /dev/zero | tr '\\0' a; echo $i; echo e$i >&2; i=$((i+1)); done"
    out, err = hashlib.sha256(), b""
    async with cuts(box), box.stream(script) as stream:
        async for chunk in stream:
            if chunk.stream == "stdout":
                out.update(chunk.data)
            else:
                err += chunk.data
    assert out.hexdigest() == hashlib.sha256(b"".join(b"a" * 200_000 + b"%d\n" % i for i in range(60))).hexdigest()
    assert err == b"".join(b"e%d\n" % i for i in range(60))
    assert stream.result.ok


async def test_standard_input_is_whole(box: Sandbox) -> None:
    """Every byte once, in order, and its end."""
    data = os.urandom(8_000_000)
    async with cuts(box):
        result = await box.exec("sha256sum; sleep 0.3", stdin=data)
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()


async def test_results_longer_than_a_frame_are_whole(box: Sandbox) -> None:
    """Also when the link breaks in the middle of a result."""
    async with cuts(box):
        for i in range(8):
            result = await box.exec(f"head -c 3000000 /dev/zero | tr '\\0' b; echo {i}; sleep 0.02")
            assert result.stdout_bytes == b"b" * 3_000_000 + b"%d\n" % i


async def test_a_jobs_input_and_output_are_whole(box: Sandbox) -> None:
    """Although readers come and leave as well."""
    data = os.urandom(2_000_000)
    job = await box.start("cat; sleep 0.3; exit 4", stdin_open=True)
    async with cuts(box):
        for i in range(20):
            await job.write_stdin(data[i * 100_000 : (i + 1) * 100_000], eof=i == 19)
            if i % 7 == 3:
                async for _ in job.output():
                    break
        result = await job.wait()
    assert (result.exit_code, hashlib.sha256(result.stdout_bytes).digest()) == (4, hashlib.sha256(data).digest())


async def test_files_and_trees_are_whole(box: Sandbox, tmp_path: Path) -> None:
    """Reads, writes, listings and transfers begin again, so the cuts have to end; what arrives is one version."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for i in range(300):
        (tree / f"{i:03}").write_bytes(os.urandom(20_000))
    content = os.urandom(8_000_000)
    async with cuts(box, most=5):
        await box.upload(tree, "/tree")
    async with cuts(box, most=5):
        await box.download("/tree", tmp_path / "copy")
    async with cuts(box, most=5):
        await box.write("/big", content)
    async with cuts(box, most=5):
        assert await box.read("/big") == content
    async with cuts(box, most=5):
        assert len(await box.list("/tree")) == 300
    assert all((tmp_path / "copy" / path.name).read_bytes() == path.read_bytes() for path in tree.iterdir())


async def test_cancelled_commands_are_killed_over_a_broken_link(box: Sandbox) -> None:
    """The cancel is said again when it may have been lost."""
    async with cuts(box, pause_s=0.01):
        calls = [asyncio.create_task(box.exec("sleep 98765")) for _ in range(20)]
        await asyncio.sleep(0.1)
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)
    async with asyncio.timeout(30):
        while [process for process in await box.processes() if b"98765" in process.argv]:  # noqa: ASYNC110 - inside
            await asyncio.sleep(0.05)


async def test_a_gigabyte_streams_through_bounded_memory(box: Sandbox) -> None:
    """Neither side gathers what the other does not take."""
    count = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with box.stream("head -c 1000000000 /dev/zero") as stream:
        async for chunk in stream:
            count += len(chunk.data)
    assert count == 1_000_000_000
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024  # KiB


def test_the_facade_does_the_same_without_async(tmp_path: Path) -> None:
    """One provider, one sandbox, every kind of call."""
    with sandlot.sync.local(cache=tmp_path / "cache") as provider:
        with provider.create(SPEC) as box:
            assert box.exec("echo $((6 * 7))").stdout == "42\n"
            box.write("/a", b"content")
            assert box.read("/a") == b"content"
            with box.shell() as shell:
                shell.run("cd /tmp")
                assert shell.cwd == "/tmp"
            job = box.start("echo one; read x; echo $x", stdin_open=True)
            job.write_stdin("two\n")
            assert job.wait().stdout == "one\ntwo\n"
            with box.stream("echo first; sleep 0.1; echo last") as stream:
                assert "".join(chunk.text for chunk in stream) == "first\nlast\n"
        assert provider.aclose().left == ()
