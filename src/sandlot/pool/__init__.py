"""Warm sandboxes, leased out and taken back reset.

`desk` decides (pure), `pool` does, `demand` knows the requests to come, `figures` counts.
"""

from sandlot.pool.desk import PoolLimits
from sandlot.pool.figures import PoolStatistics
from sandlot.pool.pool import Pool

__all__ = ["Pool", "PoolLimits", "PoolStatistics"]
