"""Warm sandboxes, leased out and taken back reset.

`desk` decides (pure), `pool` does, `demand` knows the requests to come, `figures` counts.
"""

from sandlot.pool.figures import PoolStatistics
from sandlot.pool.pool import Pool
from sandlot.pool.room import PoolLimits

__all__ = ["Pool", "PoolLimits", "PoolStatistics"]
