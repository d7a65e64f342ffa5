"""The count from outside itself: what is left is seen, each kind of it, also when nobody else knows of it any more."""

from __future__ import annotations

from cluster import Cluster
from tests.cluster import pods
from tests.cluster.faults.census import ON_NODE, Census, census, wait_nothing


def test_what_is_left_is_seen_by_its_kind(breakable: Cluster, own_space: str, own_image: str) -> None:
    """A pod and a Lease; then the node's agent dies, and the object is deleted while the container runs on."""
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{own_space}/leases"
    lease = {"metadata": {"name": "left", "labels": {"sandlot.dev/client": "other"}}}
    with breakable.api() as api:
        pods.run(api, own_space, "left", image=own_image, labels={"sandlot.dev/client": "one"})
        api.post(leases, lease)
        found = census(breakable, own_space)
        assert (found.pods, found.leases, found.containers) == (("left",), ("left",), ("left",))
        assert len(found.processes) >= 2, "the pod's own, and the holder of its namespaces"
        assert census(breakable, own_space, client="other") == Census((), ("left",), (), ())
        assert census(breakable, own_space, client="one") == Census(("left",), (), ("left",), found.processes)
        breakable.kill("kubelet")
        try:
            api.delete(f"/api/v1/namespaces/{own_space}/pods/left", {"gracePeriodSeconds": 0})
            api.delete(f"{leases}/left")
            left = wait_nothing(breakable, own_space, promise_s=0.0)
            assert left
            assert left.census == Census((), (), ("left",), found.processes)
            assert census(breakable, own_space, client="one", names=["left"]) == left.census
        finally:
            breakable.start("kubelet")
    assert not wait_nothing(breakable, own_space, kinds=ON_NODE)
