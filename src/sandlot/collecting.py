"""Python's collector of cycles, set for a process that holds thousands of sandboxes.

For processes that are wholly ours: a library does not do this to the process of its user, who may do the same.
"""

from __future__ import annotations

import gc
from typing import Final

YOUNG_OBJECTS: Final = 50_000
"""Objects made, less those freed, between two collections of the young; Python's own default is 700.

A sandbox leaves hardly any cycles, but hundreds of objects that stay, so with the default every few of them cause a
collection that finds nothing. Measured with one client: 18 % of its CPU with 2,000 sandboxes, 41 % with 10,000; this way
about 1 %.
"""


def collect_seldom() -> None:
    """Leave what is imported out of every collection, and collect the rest less often. Call it once, after importing."""
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS, 50, 50)
