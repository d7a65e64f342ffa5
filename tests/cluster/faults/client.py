"""A client of a cluster to be killed: makes sandboxes in a burst, says of each that it is usable, and waits.

    python -m tests.cluster.faults.client NAMESPACE IMAGE COUNT [CLOCK_OFFSET_S]

Prints its id, then a line for each usable sandbox. With CLOCK_OFFSET_S this machine's clock is off by so much, for it.
"""

from __future__ import annotations

import asyncio
import sys
import time

import sandlot
from sandlot.backends.kubernetes import KubernetesBackend
from tests.cluster.faults.clients import options


async def run(namespace: str, image: str, count: int) -> None:
    async with sandlot.kubernetes(options=options(namespace)) as provider:
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
    namespace, image, count, *offset = sys.argv[1:]
    if offset:
        off_s, true_time = float(offset[0]), time.time
        time.time = lambda: true_time() + off_s
    asyncio.run(run(namespace, image, int(count)))


if __name__ == "__main__":
    main()
