"""Runs tasks through a pool: lease, agent, quiesce, judge; every rollout ends scored or as a typed failure."""
