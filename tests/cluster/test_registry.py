"""Published images, pulled and run by a real node."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster import Cluster
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.credentials import credentials
from sandlot.backends.kubernetes.publishing import Publisher
from sandlot.backends.kubernetes.publishing.advertised import advertised_registry
from sandlot.backends.kubernetes.registry import parse_repository
from tests.cluster import pods
from tests.images.build import image

LOOK = "cat /etc/added /etc/passwd; ls /opaque; stat -c %u:%g:%a /etc/added; echo done"


@pytest.fixture
def layers(tmp_path: Path) -> tuple[str, str]:
    """Two directories: one adds files, the next takes some of them and of the base away again."""
    lower, upper = tmp_path / "lower", tmp_path / "upper"
    for top in (lower, upper):
        (top / "etc").mkdir(parents=True)
        (top / "opaque").mkdir()
    (lower / "etc" / "added").write_text("added\n")
    os.chown(lower / "etc" / "added", 1234, 99)
    (lower / "etc" / "added").chmod(0o640)
    (lower / "opaque" / "below").write_text("")
    os.mknod(upper / "etc" / "passwd", 0o020000, os.makedev(0, 0))
    os.setxattr(upper / "opaque", "trusted.overlay.opaque", b"y")
    (upper / "opaque" / "above").write_text("")
    return str(lower), str(upper)


async def test_a_node_runs_what_was_published(cluster: Cluster, layers: tuple[str, str], tmp_path: Path) -> None:
    """The base's files, those of both layers with their owners, and none that an upper one removed; from the registry that
    the cluster itself advertises."""
    async with await Api.open(credentials(cluster.kubeconfig)) as api:
        place = await advertised_registry(api)
    assert place.host == cluster.registry
    async with Publisher(parse_repository(place.host), tmp_path / "cache", pulled_from=place.pulled_from) as publisher:
        reference = await publisher.publish(image("busybox"), layers)
    with cluster.api() as api_of_tests, pods.namespace(api_of_tests) as space:
        command = ["sh", "-c", f"exec 2>&1; {LOOK}; sleep 100000"]
        pods.run(api_of_tests, space, "one", image=reference, command=command)
        pods.until(lambda: "done" in pods.log(api_of_tests, space, "one"), "the pod's words")
        said = pods.log(api_of_tests, space, "one").splitlines()
    assert said == ["added", "cat: can't open '/etc/passwd': No such file or directory", "above", "1234:99:640", "done"]
