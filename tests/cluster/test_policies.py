"""The isolation that `sandlot manifests --policies` promises, in a cluster that enforces it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

import sandlot
from cluster import Cluster, down, firewall, images, running, up
from cluster.options import Options
from cluster.say import Say
from sandlot.backends.kubernetes import ClusterOptions
from sandlot.backends.kubernetes.manifests import CLIENT
from tests.cluster import pods
from tests.cluster.applying import applied
from tests.cluster.conftest import own_name
from tests.images.build import image

_OPTIONS = Options(policies=True)
_PATIENCE_S = 120.0
pytestmark = pytest.mark.full  # its part takes minutes to build
_SILENT_TIMES = 3  # in a row: rules come a moment after the pod


@pytest.fixture(scope="module")
def strict(able: None) -> Iterator[Cluster]:
    """A cluster whose network keeps policies."""
    name = own_name("strict")
    try:
        up.up(up.Wanted(name, options=_OPTIONS), Say())
        yield running(name)
    finally:
        left = down.down(name, Say())
    assert left == down.Left()
    assert firewall.left() == 0


@contextmanager
def answering(address: str) -> Iterator[int]:
    """Something of the node's that answers everybody who gets through to it; its port."""
    with socket.create_server((address, 0)) as server:
        thread = threading.Thread(target=_answer, args=(server,), daemon=True)
        thread.start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


def _answer(server: socket.socket) -> None:
    while True:
        try:
            peer, _ = server.accept()
        except OSError:
            return
        with peer:
            peer.sendall(b"hello\n")


@asynccontextmanager
async def opened(strict: Cluster, folder: Path, port: int) -> AsyncIterator[sandlot.Provider]:
    """A client that pods call at one port, in a namespace of its own that is closed but for that."""
    options = ("--policies", "--client", strict.gateway, "--port", str(port))
    async with applied(strict, folder, *options) as made:
        how = ClusterOptions(
            namespace=made.namespace, connect="dial-out", advertise=strict.gateway, port=port, delivery="image"
        )
        async with sandlot.kubernetes(options=how, kubeconfig=made.kubeconfig(CLIENT), registry=strict.registry) as provider:
            yield provider


async def reaches(box: sandlot.Sandbox, address: str, port: int) -> bool:
    """Whether something there answers."""
    return (await box.exec(["nc", "-w", "2", address, str(port)], timeout=20)).stdout == "hello\n"


async def is_silent(box: sandlot.Sandbox, address: str, port: int) -> bool:
    """Whether nothing answers any more, before patience ends."""
    silent = 0
    async with asyncio.timeout(_PATIENCE_S):
        while silent < _SILENT_TIMES:
            silent = 0 if await reaches(box, address, port) else silent + 1
    return True


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


async def test_a_sandbox_reaches_its_client_and_nothing_else(strict: Cluster, tmp_path: Path) -> None:
    """Links are up and commands run, while the node's other ports, other pods and other sandboxes are out of reach; a pod
    that is no sandbox shows that they do answer."""
    busybox = {"bin/busybox": Path("/bin/busybox")}
    made = images.make(tmp_path / "busybox", busybox, links={f"bin/{name}": "busybox" for name in ("sh", "sleep", "nc")})
    ordinary = strict.push(made, "tests/nc:1")
    spec = sandlot.Spec(image=image("busybox"))
    serve = "while true; do echo hello | nc -l -p 8000; done"
    with answering(strict.gateway) as port_of_node, strict.api() as api, pods.namespace(api) as space:
        server = pods.run(api, space, "server", image=ordinary, command=["sh", "-c", serve])["status"]["podIP"]
        ask = f"for n in 1 2 3; do nc -w 2 {strict.gateway} {port_of_node}; nc -w 2 {server} 8000; done; sleep 100000"
        pods.run(api, space, "control", image=ordinary, command=["sh", "-c", ask])
        pods.until(lambda: pods.log(api, space, "control").count("hello") >= 2, "answers to a pod that is no sandbox")
        async with (
            opened(strict, tmp_path, free_port()) as provider,
            await provider.create(spec) as one,
            await provider.create(spec) as other,
        ):
            assert await is_silent(one, strict.gateway, port_of_node)
            assert await is_silent(one, server, 8000)
            await other.start(["sh", "-c", serve])
            address = (await other.exec(["hostname", "-i"])).stdout.split()[0]
            assert await is_silent(one, address, 8000)
            assert await reaches(other, "127.0.0.1", 8000)
            assert (await one.exec("echo still here")).stdout == "still here\n"
