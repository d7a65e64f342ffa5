"""A running cluster in the hands of a test: where it is, what it really runs, and faults on demand."""

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster import cgroups, nodes, processes, registry, state
from cluster.api import Api
from cluster.components import Component, components
from cluster.layout import REAL_NODE, Layout
from cluster.processes import Identity
from cluster.say import Say
from cluster.starting import Starter
from cluster.state import State
from cluster.tools import Tools

_GRACE_S = 10.0


class NoCluster(LookupError):
    """There is no cluster of this name, or it is not up."""


@dataclass(frozen=True)
class Container:
    """A container, or the holder of a pod's namespaces, that containerd keeps on the real node."""

    id: str
    pod_uid: str
    namespace: str
    pod: str
    name: str
    """Empty for the holder of the pod's namespaces."""

    pid: int
    """Its first process, or 0 when none is known."""


@dataclass(frozen=True)
class Cluster:
    """A cluster that was brought up. Every call looks anew: other processes may act on it, too."""

    name: str

    @property
    def layout(self) -> Layout:
        return self._state().layout

    @property
    def kubeconfig(self) -> Path:
        """Administrator's credentials: a client certificate."""
        return self.layout.kubeconfig

    @property
    def registry(self) -> str:
        """`host:port`, as it stands at the head of an image's name. Plain HTTP."""
        return self.layout.registry

    @property
    def gateway(self) -> str:
        """The address under which pods reach this machine."""
        return self.layout.gateway

    @property
    def real_node(self) -> str:
        return REAL_NODE

    @property
    def runtimes(self) -> tuple[str, ...]:
        """The RuntimeClasses besides the usual one."""
        return self._state().options.runtimes

    def api(self) -> Api:
        """A new connection as administrator; close it (it is a context manager)."""
        layout = self.layout
        return Api(layout.server, layout.pki)

    def push(self, oci_layout: Path, name: str) -> str:
        """Put an image into the registry; its full name."""
        return registry.push(self.registry, oci_layout, name)

    def add_fake_nodes(self, count: int) -> None:
        """Bring the fake nodes to `count` and wait until they are ready."""
        nodes.add_fake_nodes(self.layout, count)
        nodes.wait_usable(self.layout, count, lambda: None)

    # Faults

    def components(self) -> list[str]:
        return list(self._state().processes)

    def alive(self, component: str) -> bool:
        return self._identity(component).alive()

    def stop(self, component: str) -> None:
        """SIGTERM, then SIGKILL after 10 s; returns when it has ended. Containers outlive containerd and kubelet."""
        processes.stop([self._identity(component)], grace_s=_GRACE_S)

    def kill(self, component: str) -> None:
        """SIGKILL; returns when it has ended."""
        processes.stop([self._identity(component)], grace_s=0.0, first=signal.SIGKILL)

    def start(self, component: str) -> None:
        """Start one that has ended and wait until it serves; nothing when it runs.

        Raises:
            StartError: it ended or did not serve within 180 s.
        """
        with state.lock(f"cluster-{self.name}"):
            found = self._state()
            if found.processes[component].alive():
                return
            tools = Tools({name: Path(path) for name, path in found.parts.items()})
            one = self._component(found, tools, component)
            without = {name: identity for name, identity in found.processes.items() if identity.alive()}
            starter = Starter(found, tools, Say(), watched=without)
            starter.start_all([one])

    def pause(self, component: str) -> None:
        """SIGSTOP: its connections stay open and nothing answers."""
        self._send(component, signal.SIGSTOP)

    def resume(self, component: str) -> None:
        self._send(component, signal.SIGCONT)

    @contextmanager
    def paused(self, component: str) -> Iterator[None]:
        self.pause(component)
        try:
            yield
        finally:
            self.resume(component)

    def logs(self, component: str) -> str:
        """All that it wrote since the cluster was brought up, over restarts."""
        return self.layout.log(component).read_text(errors="replace")

    # From outside

    def containers(self) -> list[Container]:
        """What containerd keeps on the real node, from its own files: also while it, or the API server, is stopped."""
        top = self.layout.containerd_state / "io.containerd.runtime.v2.task" / "k8s.io"
        found = (_container(bundle) for bundle in sorted(top.iterdir())) if top.exists() else ()
        return [one for one in found if one is not None]

    def node_processes(self) -> list[Identity]:
        """Processes inside the real node's pods, as the kernel has them."""
        return cgroups.members(self.layout.cgroup, "kubepods")

    def pod_processes(self) -> dict[str, list[Identity]]:
        """The same by the pods' uids, whoever knows of these pods still."""
        return cgroups.members_of_pods(self.layout.cgroup)

    def wait_empty(self, timeout_s: float = 60.0) -> bool:
        """Wait until the real node runs no container and no process of any pod; False after `timeout_s`."""
        end = time.monotonic() + timeout_s
        while self.containers() or self.node_processes():
            if time.monotonic() >= end:
                return False
            time.sleep(0.1)
        return True

    def _state(self) -> State:
        found = state.load(self.name)
        if found is None:
            raise NoCluster(f"no cluster {self.name}: python -m cluster up --name {self.name}")
        return found

    def _identity(self, component: str) -> Identity:
        return self._state().processes[component]

    def _component(self, found: State, tools: Tools, name: str) -> Component:
        """Its own description, free of what must run before it: a test may have stopped that on purpose."""
        one = next(one for one in components(found.layout, tools, found.options) if one.name == name)
        return Component(one.name, one.argv, one.answers, in_node=one.in_node)

    def _send(self, component: str, signum: signal.Signals) -> None:
        if not self._identity(component).send(signum):
            raise ProcessLookupError(f"{component} of {self.name} has ended")


def running(name: str) -> Cluster:
    """The cluster of this name.

    Raises:
        NoCluster: it was never brought up in this boot, or not to the end.
    """
    found = state.load(name)
    if found is None or not found.ready or found.boot != state.boot_id():
        raise NoCluster(f"no cluster {name} is up: python -m cluster up --name {name}")
    return Cluster(name)


def _container(bundle: Path) -> Container | None:
    """What a bundle's specification says; None when it is only being made or removed."""
    try:
        notes: dict[str, Any] = json.loads((bundle / "config.json").read_bytes()).get("annotations", {})
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    try:
        pid = int((bundle / "init.pid").read_text())
    except (FileNotFoundError, ValueError):
        pid = 0
    key = "io.kubernetes.cri."
    return Container(
        id=bundle.name,
        pod_uid=notes.get(f"{key}sandbox-uid", ""),
        namespace=notes.get(f"{key}sandbox-namespace", ""),
        pod=notes.get(f"{key}sandbox-name", ""),
        name=notes.get(f"{key}container-name", ""),
        pid=pid,
    )
