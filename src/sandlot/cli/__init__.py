"""The `sandlot` command: one file a verb, imported only when that verb is called.

Data goes to standard output (one JSON object with `--json`), everything meant for people to standard error. `failures`
is the one place that turns an error into an exit code and a line. Nothing is decided here that a library user would miss.
"""
