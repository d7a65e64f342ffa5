"""The command line's `run`, `report` and `tasks`, as processes on real sandboxes."""
