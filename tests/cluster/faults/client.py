"""A client of a cluster to be killed: makes sandboxes in a burst, says of each that it is usable, and waits.

    python -m tests.cluster.faults.client CLUSTER NAMESPACE IMAGE COUNT CONNECT CLOCK_OFFSET_S

Prints its id, then a line for each usable sandbox. For it this machine's clock is off by CLOCK_OFFSET_S.
"""

from __future__ import annotations

import asyncio
import sys
import time

import sandlot
from cluster import running
from sandlot.backends.kubernetes import ClusterOptions, KubernetesBackend
from tests.cluster.faults.ways import by


async def run(options: ClusterOptions, image: str, count: int) -> None:
    async with sandlot.kubernetes(options=options) as provider:
        assert isinstance(provider.backend, KubernetesBackend)
        print(provider.backend.client, flush=True)

        async def one() -> None:
            box = await provider.create(sandlot.Spec(image=image))
            await box.start("sleep 98765")
            print(box.name, flush=True)

        async with asyncio.TaskGroup() as group:
            for _ in range(count):
                group.create_task(one())
        await asyncio.Event().wait()


def main() -> None:
    cluster, namespace, image, count, connect, offset_s = sys.argv[1:]
    off_s, true_time = float(offset_s), time.time
    time.time = lambda: true_time() + off_s
    asyncio.run(run(by(connect, running(cluster), namespace), image, int(count)))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
