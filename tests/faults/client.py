"""A client to be killed: makes sandboxes, keeps them busy, says so, and waits.

    python -m tests.faults.client COUNT [--fork]

Prints one line of JSON when all are busy. With --fork a child process that holds copies of every descriptor stays behind.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time

import sandlot
from sandlot.spec import Spec


async def run(count: int, fork: bool) -> None:
    async with sandlot.local() as provider:
        boxes = await asyncio.gather(*(provider.create(Spec(image="host", memory="64MiB")) for _ in range(count)))
        script = "(setsid sleep 98765 &); while :; do echo x > /tmp/x; done"
        for box in boxes:
            await box.start(script)
        child = _fork_a_holder() if fork else 0
        print(json.dumps({"pid": os.getpid(), "child": child, "names": [box.name for box in boxes]}), flush=True)
        await asyncio.Event().wait()


def _fork_a_holder() -> int:
    """A worker of the kind that trainers fork: it has every socket of its parent and outlives it."""
    child = os.fork()
    if child == 0:
        for descriptor in (0, 1, 2):
            os.close(descriptor)
        time.sleep(600)
        os._exit(0)
    return child


def main() -> None:
    asyncio.run(run(int(sys.argv[1]), "--fork" in sys.argv))


if __name__ == "__main__":
    main()
