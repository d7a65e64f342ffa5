"""Brings a cluster up, or takes back everything it began."""

import os
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from cluster import advertising, build, certs, cgroups, configs, images, kubeconfig, needs, nodes, parts, state
from cluster.api import Api
from cluster.components import components
from cluster.down import take_down
from cluster.layout import REAL_LABEL, Layout
from cluster.options import USUAL, Options
from cluster.say import Say
from cluster.starting import Starter, make_directories
from cluster.state import State
from cluster.tools import Tools


class UpError(Exception):
    """The machine cannot run a cluster, or a part failed; what was begun is undone."""


@dataclass(frozen=True)
class Wanted:
    """What `up` is asked for."""

    name: str = "main"
    fake_nodes: int = 0
    options: Options = USUAL
    merge_into: Path | None = None
    """A kubeconfig of the user's that gets the cluster's context, made current; None for none."""


def up(wanted: Wanted, say: Say) -> State:
    """Bring it up and wait until it takes pods. A cluster that runs is left as it is, save fake nodes that it lacks.

    Raises:
        UpError, needs.NeedError, toolrun.BuildError, state.ClaimError, starting.StartError: see there; nothing is left running.
        KeyboardInterrupt: the same.
    """
    if os.geteuid() != 0:
        raise UpError("a cluster needs root: it makes cgroups, namespaces and a bridge")
    needs.provide(wanted.options, say)
    tools = build.build(parts.parts(wanted.options), say)
    with state.lock(f"cluster-{wanted.name}"):
        old = state.load(wanted.name)
        if old is not None and runs(old):
            return _extend(old, wanted, say)
        if old is not None:
            say(f"{wanted.name}: parts of an earlier one are left, removing them")
            take_down(old)
        return _bring_up(wanted, tools, say)


def runs(found: State) -> bool:
    """Whether `up` came to its end and everything it started still lives."""
    return found.ready and found.boot == state.boot_id() and all(one.alive() for one in found.processes.values())


def _extend(old: State, wanted: Wanted, say: Say) -> State:
    if not old.options.covers(wanted.options):
        raise UpError(f"{wanted.name} runs with other options than are asked for now: take it down first")
    nodes.add_fake_nodes(old.layout, wanted.fake_nodes)
    nodes.wait_usable(old.layout, wanted.fake_nodes, lambda: None)
    say(f"{wanted.name}: runs already, {_where(old.layout)}")
    return old


def _bring_up(wanted: Wanted, tools: Tools, say: Say) -> State:
    claimed = state.claim(wanted.name, wanted.options)
    claimed = replace(claimed, parts={name: str(path) for name, path in tools.parts.items()})
    claimed.save()
    starter = Starter(claimed, tools, say)
    try:
        _start(starter, wanted)
    except BaseException:
        say(f"{wanted.name}: stopping what was started")
        left = take_down(starter.state)
        say(f"{wanted.name}: left behind: {left}")
        raise
    say(f"{wanted.name}: up, {_where(claimed.layout)}")
    return starter.state


def _start(starter: Starter, wanted: Wanted) -> None:
    layout, tools, say = starter.state.layout, starter.tools, starter.say
    make_directories(layout)
    cgroups.create(layout.cgroup)
    certs.write(layout)
    configs.write(layout, tools, wanted.options)
    say(f"{layout.name}: certificates and configuration written")
    starter.start_all(components(layout, tools, wanted.options))
    _import_pause(layout, tools)
    _add_runtime_classes(layout, wanted.options)
    nodes.add_fake_nodes(layout, wanted.fake_nodes)
    nodes.wait_usable(layout, wanted.fake_nodes, starter.check)
    say(f"{layout.name}: {1 + wanted.fake_nodes} nodes ready")
    advertising.advertise_registry(layout)
    if wanted.merge_into is not None:
        # Written down first: what is merged and not written down would stay for ever.
        kubectl = tools.path("kubectl")
        former = _former_contexts(kubeconfig.current(kubectl, wanted.merge_into), layout.context)
        merged_into = str(wanted.merge_into.absolute())
        starter.state = replace(starter.state, merged_into=merged_into, former_contexts=former)
        starter.state.save()
        kubeconfig.add(kubectl, wanted.merge_into, configs.kubeconfig(layout, "admin"))
    starter.state = replace(starter.state, ready=True)
    starter.state.save()


def _former_contexts(current: str, own: str) -> tuple[str, ...]:
    """What is current, and what was before it where that is another cluster's."""
    others = [found for name in state.names() if (found := state.load(name)) is not None and found.layout.context == current]
    before = [one for found in others for one in found.former_contexts]
    return tuple(one for one in (current, *before) if one and one != own)


def _add_runtime_classes(layout: Layout, options: Options) -> None:
    with Api(layout.server, layout.pki) as api:
        for name in options.runtimes:
            value = {"metadata": {"name": name}, "handler": name, "scheduling": {"nodeSelector": {REAL_LABEL: "real"}}}
            api.ensure("/apis/node.k8s.io/v1/runtimeclasses", value)


def _import_pause(layout: Layout, tools: Tools) -> None:
    """The image of what holds a pod's namespaces, straight into containerd."""
    with tempfile.TemporaryDirectory(dir=layout.top) as scratch:
        made = images.make(Path(scratch, "pause"), {"pause": tools.path("pause")}, command=["/pause"])
        packed = images.archive(made, configs.PAUSE_IMAGE, Path(scratch, "pause.tar"))
        words = [str(tools.path("ctr")), f"--address={layout.containerd_socket}", "--namespace=k8s.io"]
        done = subprocess.run([*words, "images", "import", str(packed)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UpError(f"containerd took no pause image: {done.stderr.strip()}")


def _where(layout: Layout) -> str:
    return f"KUBECONFIG={layout.kubeconfig}, registry {layout.registry}"
