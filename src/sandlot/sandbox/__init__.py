"""The handle of one sandbox: commands, files, and the sandbox itself. All of it works over a `Connection`, on any backend."""

from sandlot.sandbox.diffs import Diff
from sandlot.sandbox.handle import Sandbox
from sandlot.sandbox.jobs import Job
from sandlot.sandbox.recording import Record, Recorder
from sandlot.sandbox.shells import Shell
from sandlot.sandbox.streams import Chunk, CommandStream
from sandlot.sandbox.values import FileInfo, ProcessInfo, ResetReport, SandboxUsage, TransferReport

__all__ = [
    "Chunk",
    "CommandStream",
    "Diff",
    "FileInfo",
    "Job",
    "ProcessInfo",
    "Record",
    "Recorder",
    "ResetReport",
    "Sandbox",
    "SandboxUsage",
    "Shell",
    "TransferReport",
]
