"""Agents that try to be paid for nothing, as real rollouts."""
