"""What Sandlot costs, measured against a floor of the same machine in the same minute.

Every benchmark does work whose result it checks, runs in closed loop, and takes its floor interleaved with its own work,
block by block: these numbers are ratios first, and times only for the machine that printed them. `table` is the common form
of results, `measuring` the way of taking them, and each other module is one benchmark: a function `measure(...) -> Table`.
"""
