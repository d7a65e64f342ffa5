"""Runs tasks through a pool: lease, agent, quiesce, judge; every rollout ends scored or as a typed failure."""

from sandlot.rollout.agents import Agent, AgentFunction, Assignment
from sandlot.rollout.engine import RolloutSettings, rollouts
from sandlot.rollout.groups import Group, group_results, whole_groups
from sandlot.rollout.judging import Judge, Judging
from sandlot.rollout.phases import PhaseLimits
from sandlot.rollout.recording import ContentStore
from sandlot.rollout.results import AgentReport, Attempt, RolloutResult
from sandlot.rollout.store import RunStore, read_results, write_whole

__all__ = [
    "Agent",
    "AgentFunction",
    "AgentReport",
    "Assignment",
    "Attempt",
    "ContentStore",
    "Group",
    "Judge",
    "Judging",
    "PhaseLimits",
    "RolloutResult",
    "RolloutSettings",
    "RunStore",
    "group_results",
    "read_results",
    "rollouts",
    "whole_groups",
    "write_whole",
]
