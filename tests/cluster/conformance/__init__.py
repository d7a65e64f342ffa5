"""The shared suite against pods of a real cluster."""
