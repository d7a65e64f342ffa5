"""Sandboxes for agentic reinforcement learning: thousands at once, usable at once, none left behind.

    async with sandlot.local() as provider:
        async with await provider.create(sandlot.Spec(image="host", memory="512MiB")) as box:
            result = await box.exec("pytest -q", timeout=60)

Code that is not async uses `sandlot.sync`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from sandlot.errors import (
    ArgumentTooLong,
    BadRequest,
    Capacity,
    CleanupFailed,
    Closed,
    CommandError,
    CommandFailed,
    CommandKilled,
    CommandOutOfMemory,
    CommandTimedOut,
    DaemonFault,
    DeadlineExceeded,
    Denied,
    ImageInvalid,
    ImageNotFound,
    Infrastructure,
    LimitUnenforceable,
    NotReady,
    ProtocolViolation,
    RegistryFault,
    SandboxFileError,
    SandboxFileExists,
    SandboxFileNotFound,
    SandboxGone,
    SandboxIsADirectory,
    SandboxNoSpace,
    SandboxNotADirectory,
    SandboxPermissionDenied,
    SandlotError,
    Throttled,
    TransportLost,
    Unsupported,
    UserUnsupported,
    WriteFailed,
)
from sandlot.podoptions import PodOptions
from sandlot.result import Result, Stream, Usage
from sandlot.spec import Spec

if TYPE_CHECKING:
    from sandlot.accounts import Closing, ProviderStatistics, Spread
    from sandlot.adaptive import Adaptive, QueueTarget
    from sandlot.events import Event, EventLog, read_events
    from sandlot.janitor import Deletion
    from sandlot.opening import kubernetes, local
    from sandlot.pacing import Pace
    from sandlot.policy import Settings, cluster_settings
    from sandlot.pool import Pool, PoolLimits, PoolStatistics
    from sandlot.provider import Provider
    from sandlot.rollout import (
        AgentReport,
        Assignment,
        Attempt,
        Group,
        PhaseLimits,
        RolloutResult,
        RolloutSettings,
        group_results,
        rollouts,
        whole_groups,
    )
    from sandlot.sandbox import (
        Chunk,
        CommandStream,
        Diff,
        FileInfo,
        Job,
        ProcessInfo,
        Record,
        Recorder,
        ResetReport,
        Sandbox,
        SandboxUsage,
        Shell,
        TransferReport,
    )
    from sandlot.tasks import Task, Verdict, read_tasks

__all__ = [
    "Adaptive",
    "AgentReport",
    "ArgumentTooLong",
    "Assignment",
    "Attempt",
    "BadRequest",
    "Capacity",
    "Chunk",
    "CleanupFailed",
    "Closed",
    "Closing",
    "CommandError",
    "CommandFailed",
    "CommandKilled",
    "CommandOutOfMemory",
    "CommandStream",
    "CommandTimedOut",
    "DaemonFault",
    "DeadlineExceeded",
    "Deletion",
    "Denied",
    "Diff",
    "Event",
    "EventLog",
    "FileInfo",
    "Group",
    "ImageInvalid",
    "ImageNotFound",
    "Infrastructure",
    "Job",
    "LimitUnenforceable",
    "NotReady",
    "Pace",
    "PhaseLimits",
    "PodOptions",
    "Pool",
    "PoolLimits",
    "PoolStatistics",
    "ProcessInfo",
    "ProtocolViolation",
    "Provider",
    "ProviderStatistics",
    "QueueTarget",
    "Record",
    "Recorder",
    "RegistryFault",
    "ResetReport",
    "Result",
    "RolloutResult",
    "RolloutSettings",
    "Sandbox",
    "SandboxFileError",
    "SandboxFileExists",
    "SandboxFileNotFound",
    "SandboxGone",
    "SandboxIsADirectory",
    "SandboxNoSpace",
    "SandboxNotADirectory",
    "SandboxPermissionDenied",
    "SandboxUsage",
    "SandlotError",
    "Settings",
    "Shell",
    "Spec",
    "Spread",
    "Stream",
    "Task",
    "Throttled",
    "TransferReport",
    "TransportLost",
    "Unsupported",
    "Usage",
    "UserUnsupported",
    "Verdict",
    "WriteFailed",
    "cluster_settings",
    "group_results",
    "kubernetes",
    "local",
    "read_events",
    "read_tasks",
    "rollouts",
    "whole_groups",
]

_LATER: Final = {
    "Closing": "sandlot.accounts",
    "ProviderStatistics": "sandlot.accounts",
    "Spread": "sandlot.accounts",
    "Event": "sandlot.events",
    "EventLog": "sandlot.events",
    "read_events": "sandlot.events",
    "Deletion": "sandlot.janitor",
    "kubernetes": "sandlot.opening",
    "local": "sandlot.opening",
    "Adaptive": "sandlot.adaptive",
    "QueueTarget": "sandlot.adaptive",
    "Pace": "sandlot.pacing",
    "Settings": "sandlot.policy",
    "cluster_settings": "sandlot.policy",
    "Pool": "sandlot.pool",
    "PoolLimits": "sandlot.pool",
    "PoolStatistics": "sandlot.pool",
    "Provider": "sandlot.provider",
    "Chunk": "sandlot.sandbox",
    "CommandStream": "sandlot.sandbox",
    "Diff": "sandlot.sandbox",
    "FileInfo": "sandlot.sandbox",
    "Job": "sandlot.sandbox",
    "ProcessInfo": "sandlot.sandbox",
    "Record": "sandlot.sandbox",
    "Recorder": "sandlot.sandbox",
    "ResetReport": "sandlot.sandbox",
    "Sandbox": "sandlot.sandbox",
    "SandboxUsage": "sandlot.sandbox",
    "Shell": "sandlot.sandbox",
    "TransferReport": "sandlot.sandbox",
    "AgentReport": "sandlot.rollout",
    "Assignment": "sandlot.rollout",
    "Attempt": "sandlot.rollout",
    "Group": "sandlot.rollout",
    "PhaseLimits": "sandlot.rollout",
    "RolloutResult": "sandlot.rollout",
    "RolloutSettings": "sandlot.rollout",
    "group_results": "sandlot.rollout",
    "rollouts": "sandlot.rollout",
    "whole_groups": "sandlot.rollout",
    "Task": "sandlot.tasks",
    "Verdict": "sandlot.tasks",
    "read_tasks": "sandlot.tasks",
}
"""Where the names live that are imported when they are first used: whoever only reads a `--help` does not wait for them."""


def __getattr__(name: str) -> Any:
    if name == "sync":
        return import_module("sandlot.sync")
    module = _LATER.get(name)
    if module is None:
        raise AttributeError(f"module 'sandlot' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
