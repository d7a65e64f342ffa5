"""An API server for measuring clients: it keeps books on Leases and pods, and says of each pod at once that it runs.

It answers in its own process what a client asks, over TLS, with objects of the size that real ones have. There is no
cluster behind it, so that one client can be given thousands of pods in seconds, and its CPU measured apart from that of
an API server, a scheduler and nodes. `python -m sandlot.bench.kubernetes.standin DIRECTORY` writes DIRECTORY/kubeconfig,
says `ready` and ends with its standard input.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import ssl
import sys
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec
from aiohttp import web

Json = dict[str, Any]

STEP_S: Final = 0.05
"""Between a pod's being made, having a node and running: long enough that each is an event of its own."""
FIRST_ADDRESS: Final = ipaddress.IPv4Address("127.16.0.1")
"""Of pods: one each, all of this machine's loopback."""
MANAGED: Final = {"manager": "stand-in", "operation": "Update", "fieldsType": "FieldsV1", "fieldsV1": {"f:status": "." * 2_000}}
"""Takes the room of what an API server of version 1.34 notes about who owns which field of such a pod."""


class Pod:
    """One pod's object, and how far it has come."""

    __slots__ = ("body", "steps")

    def __init__(self, body: Json, address: str) -> None:
        self.body = body
        ready = [{"type": one, "status": "True"} for one in ("Initialized", "Ready", "ContainersReady", "PodScheduled")]
        running = {
            "phase": "Running",
            "conditions": ready,
            "podIP": address,
            "podIPs": [{"ip": address}],
            "containerStatuses": [{"name": "task", "ready": True, "state": {"running": {"startedAt": _now()}}}],
        }
        scheduled = {"phase": "Pending", "conditions": ready[-1:]}
        self.steps: Iterator[Json] = iter([{"phase": "Pending"}, scheduled, running])

    @property
    def labels(self) -> Mapping[str, str]:
        labels: Mapping[str, str] = self.body["metadata"].get("labels", {})
        return labels

    def advance(self) -> bool:
        """Take the next step. False: there is none, it runs."""
        status = next(self.steps, None)
        if status is None:
            return False
        if "conditions" in status:
            self.body["spec"]["nodeName"] = "stand-in"
        self.body["status"] = status
        return True


class Watcher:
    """Events for one open watch, as they shall be sent."""

    def __init__(self, query: Mapping[str, str]) -> None:
        self.selects = selecting(query.get("labelSelector", ""))
        self.only_running = query.get("fieldSelector") == "status.phase=Running"
        self.lines: list[bytes] = []
        self.news = asyncio.Event()

    def tell(self, kind: str, pod: Pod, encoded: bytes) -> None:
        """With `only_running` a pod is ADDED when it begins to run, as an API server has it."""
        if self.only_running:
            if kind != "DELETED" and pod.body["status"]["phase"] != "Running":
                return
            kind = "DELETED" if kind == "DELETED" else "ADDED"
        if self.selects(pod.labels):
            self.lines.append(b'{"type":"%s","object":%s}\n' % (kind.encode(), encoded))
            self.news.set()


def selecting(selector: str) -> Callable[[Mapping[str, str]], bool]:
    """What a label selector of `name=value` terms finds; other terms find everything."""
    terms = [term.split("=", 1) for term in selector.split(",") if "=" in term]
    return lambda labels: all(labels.get(name) == value for name, value in terms)


class StandIn:
    """The books, and the requests that change them."""

    def __init__(self) -> None:
        self._objects: dict[str, Json] = {}
        self._pods: dict[str, Pod] = {}
        self._moving: list[list[Pod]] = []
        self._watchers: set[Watcher] = set()
        self._versions = count(1)
        self._addresses = count(int(FIRST_ADDRESS))
        self._version = 0

    def application(self) -> web.Application:
        """What it answers: everything that is not here is 404."""
        application = web.Application(client_max_size=2**22)
        pods, leases = "/api/v1/namespaces/{namespace}/pods", "/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        application.add_routes(
            [
                web.get("/version", self._answer_nothing),
                web.get("/api/v1/namespaces/{namespace}/events", self._answer_nothing),
                web.post(leases, self._make_lease),
                web.get(leases, self._answer_nothing),
                web.patch(leases + "/{name}", self._answer_nothing),
                web.delete(leases + "/{name}", self._answer_nothing),
                web.post(pods, self._make_pod),
                web.get(pods, self._get_pods),
                web.delete(pods, self._delete_pods),
                web.delete(pods + "/{name}", self._delete_pod),
            ]
        )
        return application

    async def run(self) -> None:
        """Let pods come one step further, again and again."""
        while True:
            await asyncio.sleep(STEP_S)
            moving, self._moving = self._moving, []
            for pods in moving:
                self._advance(pods)

    # --- requests -----------------------------------------------------------------------------------------------------
    async def _answer_nothing(self, request: web.Request) -> web.Response:
        return _json({"metadata": {"name": request.match_info.get("name", "")}, "items": []})

    async def _make_lease(self, request: web.Request) -> web.Response:
        body = self._stamped(await request.read())
        return _json(body, status=201)

    async def _make_pod(self, request: web.Request) -> web.Response:
        body = self._stamped(await request.read())
        name = body["metadata"]["name"]
        if name in self._pods:
            return _json({"kind": "Status", "reason": "AlreadyExists", "code": 409}, status=409)
        pod = self._pods[name] = Pod(body, str(ipaddress.IPv4Address(next(self._addresses))))
        self._advance([pod])
        return _json(body, status=201)

    async def _get_pods(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        selects = selecting(request.query.get("labelSelector", ""))
        found = [pod.body for pod in self._pods.values() if selects(pod.labels)][: int(request.query.get("limit", 500))]
        return _json({"metadata": {"resourceVersion": str(self._version)}, "items": found})

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json", "Date": _http_date()})
        await response.prepare(request)
        watcher = Watcher(request.query)
        self._watchers.add(watcher)
        for pod in self._pods.values():  # what came between the list that named the version and this moment
            if int(pod.body["metadata"]["resourceVersion"]) > int(request.query.get("resourceVersion", "0")):
                watcher.tell("ADDED", pod, msgspec.json.encode(pod.body))
        try:
            while True:
                await watcher.news.wait()
                watcher.news.clear()
                lines, watcher.lines = watcher.lines, []
                await response.write(b"".join(lines))
        except ConnectionError:
            return response  # who watched has gone
        finally:
            self._watchers.discard(watcher)

    async def _delete_pods(self, request: web.Request) -> web.Response:
        selects = selecting(request.query.get("labelSelector", ""))
        for name in [name for name, pod in self._pods.items() if selects(pod.labels)]:
            self._remove(name)
        return _json({"items": []})

    async def _delete_pod(self, request: web.Request) -> web.Response:
        pod = self._remove(request.match_info["name"])
        if pod is None:
            return _json({"kind": "Status", "reason": "NotFound", "code": 404}, status=404)
        return _json(pod.body)

    # --- inside -------------------------------------------------------------------------------------------------------
    def _stamped(self, posted: bytes) -> Json:
        body: Json = msgspec.json.decode(posted)
        stamps = {"uid": f"00000000-0000-4000-8000-{next(self._versions):012d}", "creationTimestamp": _now()}
        body["metadata"] |= {**stamps, "managedFields": [MANAGED]}
        return body

    def _advance(self, pods: list[Pod]) -> None:
        moved = [pod for pod in pods if pod.advance()]
        for pod in moved:
            self._tell("ADDED" if pod.body["status"] == {"phase": "Pending"} else "MODIFIED", pod)
        if moved:
            self._moving.append(moved)

    def _remove(self, name: str) -> Pod | None:
        pod = self._pods.pop(name, None)
        if pod is not None:
            pod.steps = iter(())
            self._tell("DELETED", pod)
        return pod

    def _tell(self, kind: str, pod: Pod) -> None:
        self._version = next(self._versions)
        pod.body["metadata"]["resourceVersion"] = str(self._version)
        encoded = msgspec.json.encode(pod.body)
        for watcher in self._watchers:
            watcher.tell(kind, pod, encoded)


def _json(body: Json, *, status: int = 200) -> web.Response:
    data = msgspec.json.encode(body)
    return web.Response(body=data, status=status, content_type="application/json", headers={"Date": _http_date()})


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _http_date() -> str:
    return datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")


# --- the process ------------------------------------------------------------------------------------------------------
def certify(directory: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key, good for a day."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stand-in")])
    now, here = datetime.now(UTC), x509.IPAddress(ipaddress.IPv4Address("127.0.0.1"))
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([here]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = directory / "certificate.pem", directory / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain))
    return paths


def write_kubeconfig(directory: Path, certificate: Path, port: int) -> None:
    """For clients: where it listens, and whom to trust. JSON is YAML, too."""
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(certificate)}
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "stand-in", "cluster": cluster}],
        "users": [{"name": "stand-in", "user": {"token": "none"}}],
        "contexts": [{"name": "stand-in", "context": {"cluster": "stand-in", "user": "stand-in"}}],
        "current-context": "stand-in",
    }
    (directory / "kubeconfig").write_bytes(msgspec.json.encode(body))


async def serve(directory: Path) -> None:
    """Until standard input ends."""
    books, (certificate, key) = StandIn(), certify(directory)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    runner = web.AppRunner(books.application(), access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    write_kubeconfig(directory, certificate, runner.addresses[0][1])
    moving = asyncio.create_task(books.run())
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    moving.cancel()
    await runner.cleanup()


def main() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(serve(Path(sys.argv[1])))


if __name__ == "__main__":
    main()
