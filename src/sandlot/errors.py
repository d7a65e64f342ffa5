"""What can go wrong, one closed tree.

    SandlotError
    ├── CommandError               a command did not do what was asked; the sandbox lives on
    │   ├── CommandFailed          check=True and it ended with a non-zero code or by a signal
    │   ├── CommandTimedOut        check=True and its time limit ended it (partial output is in .result)
    │   ├── CommandOutOfMemory     check=True and the kernel killed it for memory
    │   └── CommandKilled          cancelled, or killed by quiesce or reset
    ├── BadRequest                 the caller's arguments can never work
    │   ├── ArgumentTooLong        argv, script, environment or path beyond the limits
    │   ├── ImageNotFound          nothing at that reference
    │   └── ImageInvalid           something is there, but it is no usable image
    ├── Unsupported                this backend, mode or machine cannot do it
    │   ├── Denied                 the credentials at hand give no right to do it
    │   ├── UserUnsupported        the id mode has no such user to become
    │   └── LimitUnenforceable     limits="require" and this limit cannot be enforced here
    ├── SandboxFileError           also an OSError: FileNotFoundError, IsADirectoryError, ... (`errors.files`)
    ├── Infrastructure             not the command's fault and not the caller's
    │   ├── SandboxGone            why: oom, killed, exited, lease_expired, idle, lifetime, evicted, node_lost, unknown
    │   ├── TransportLost          the link broke and could not be restored in time
    │   ├── ProtocolViolation      the other side broke the wire contract
    │   ├── Capacity               no room now
    │   ├── Throttled              told to come back later (.retry_after_s)
    │   ├── RegistryFault          an image registry could not be reached or failed
    │   ├── NotReady               did not become usable within its ready time-out
    │   ├── DeadlineExceeded       no answer from the other side within the client's own bound
    │   └── DaemonFault            the daemon reported an internal error
    ├── Closed                     used after it was closed by this client
    ├── WriteFailed                also an OSError: a file of results or events on the client's machine (disk full, ...)
    └── CleanupFailed              something could not be deleted; .left names it

`retriable` says whether the same call may succeed on a fresh sandbox without anybody changing anything. Nothing in
this tree is ever turned into an exit code, into text of standard output, or into a reward.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from sandlot.result import Result


class SandlotError(Exception):
    """Base of all errors of Sandlot. `retriable` is a class fact; `hint` says what to do, in one sentence or empty."""

    retriable: ClassVar[bool] = False
    kind: ClassVar[str] = "sandlot"

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, self.__dict__))


def _rebuild(kind: type[SandlotError], args: tuple[Any, ...], state: dict[str, Any]) -> SandlotError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


# --- commands ------------------------------------------------------------------------------------------------------
class CommandError(SandlotError):
    """A command ended otherwise than asked; everything it wrote is in `result`. The sandbox lives on."""

    kind = "command"

    def __init__(self, message: str, result: Result, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.result = result


class CommandFailed(CommandError):
    """Non-zero exit code or death by a signal, raised only with `check=True`."""

    kind = "command_failed"


class CommandTimedOut(CommandError):
    """The command's own time limit ended it, raised only with `check=True`."""

    kind = "timed_out"


class CommandOutOfMemory(CommandError):
    """The kernel killed a process of the command for memory, raised only with `check=True`."""

    kind = "out_of_memory"


class CommandKilled(CommandError):
    """Sandlot killed the command because someone asked: cancel, quiesce or reset."""

    kind = "killed"


# --- the caller ----------------------------------------------------------------------------------------------------
class BadRequest(SandlotError, ValueError):
    """The caller's arguments can never work. Not retriable."""

    kind = "bad_request"


class ArgumentTooLong(BadRequest):
    """An argument vector, script, environment or path is beyond its limit (`sandlot.limits`)."""

    kind = "argument_too_long"


class ImageNotFound(BadRequest):
    """There is nothing at the image reference."""

    kind = "image_not_found"


class ImageInvalid(BadRequest):
    """There is something at the image reference, but it is not a usable image."""

    kind = "image_invalid"


class Unsupported(SandlotError):
    """This backend, id mode or machine cannot do what was asked. Not retriable here."""

    kind = "unsupported"


class Denied(Unsupported):
    """A cluster or registry refused: the credentials at hand are missing or give no right to do it."""

    kind = "denied"


class UserUnsupported(Unsupported):
    """The sandbox's id mode has no such user to become (see `Sandbox.mode`)."""

    kind = "user_unsupported"


class LimitUnenforceable(Unsupported):
    """`limits="require"` and a limit cannot be enforced on this machine."""

    kind = "limit_unenforceable"


# --- files: each is also the OSError a local call would raise --------------------------------------------------------
class SandboxFileError(SandlotError, OSError):
    """A file operation inside the sandbox failed as it would have failed locally. `path` is the path inside."""

    kind = "file"
    errno_default: ClassVar[int] = errno.EIO

    def __init__(self, message: str, *, path: str = "", number: int | None = None, hint: str = "") -> None:
        SandlotError.__init__(self, message, hint=hint)
        self.errno = self.errno_default if number is None else number
        self.strerror = message
        self.filename = path or None
        self.path = path

    def __str__(self) -> str:
        return f"{self.message}: {self.path!r}" if self.path else self.message


class SandboxFileNotFound(SandboxFileError, FileNotFoundError):
    """No such file or directory in the sandbox."""

    kind = "not_found"
    errno_default = errno.ENOENT


class SandboxIsADirectory(SandboxFileError, IsADirectoryError):
    """A file was needed and there is a directory."""

    kind = "is_a_directory"
    errno_default = errno.EISDIR


class SandboxNotADirectory(SandboxFileError, NotADirectoryError):
    """A directory was needed and there is something else."""

    kind = "not_a_directory"
    errno_default = errno.ENOTDIR


class SandboxPermissionDenied(SandboxFileError, PermissionError):
    """The acting user has no right to do this in the sandbox."""

    kind = "permission"
    errno_default = errno.EACCES


class SandboxFileExists(SandboxFileError, FileExistsError):
    """The path exists and must not."""

    kind = "exists"
    errno_default = errno.EEXIST


class SandboxNoSpace(SandboxFileError):
    """The sandbox's disk or inode limit is reached."""

    kind = "no_space"
    errno_default = errno.ENOSPC


# --- infrastructure --------------------------------------------------------------------------------------------------
class Infrastructure(SandlotError):
    """Neither the command's fault nor the caller's: never a reward of 0. Retriable unless the class says otherwise."""

    retriable = True
    kind = "infrastructure"


class SandboxGone(Infrastructure):
    """The sandbox is no more; `why` is one of the closed set in the tree above. Its files are lost, other sandboxes are not."""

    kind = "sandbox_gone"

    def __init__(self, message: str, *, why: str = "unknown", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.why = why


class TransportLost(Infrastructure):
    """The link broke and could not be restored in time. Whether a running command finished is not known to the client."""

    kind = "transport"


class ProtocolViolation(Infrastructure):
    """The other side broke the wire contract; the link was closed."""

    kind = "protocol"


class Capacity(Infrastructure):
    """No room for one more sandbox, command or result now."""

    kind = "capacity"


class Throttled(Infrastructure):
    """The system asked to come back later. `retry_after_s` in seconds, or None when it did not say."""

    kind = "throttled"

    def __init__(self, message: str, *, retry_after_s: float | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class RegistryFault(Infrastructure):
    """An image registry could not be reached, or failed. What it has stored stays; pushing again sends only the rest."""

    kind = "registry"


class NotReady(Infrastructure):
    """The sandbox did not answer a first command within its ready time-out; it has been deleted."""

    kind = "not_ready"


class DeadlineExceeded(Infrastructure):
    """The other side did not answer within the client's own bound (time-out plus grace)."""

    kind = "deadline"


class DaemonFault(Infrastructure):
    """The daemon reported an internal error."""

    kind = "daemon_fault"


class Closed(SandlotError):
    """The object was closed by this client before the call."""

    kind = "closed"


class WriteFailed(SandlotError, OSError):
    """Results or events could not be written to the client's own disk. Everything written before is whole."""

    kind = "write_failed"

    @classmethod
    def from_os(cls, error: OSError, path: str | os.PathLike[str]) -> WriteFailed:
        """The same failure as ours: `errno`, `strerror` and `filename` as the system gave them."""
        failed = cls(f"cannot write {os.fspath(path)}: {error.strerror or error}", hint=_WRITE_HINTS.get(error.errno or 0, ""))
        failed.errno, failed.strerror, failed.filename = error.errno, error.strerror, os.fspath(path)
        return failed


_WRITE_HINTS = {
    errno.ENOSPC: "make room on that disk and run again: what is there stays",
    errno.EDQUOT: "raise the quota or make room and run again: what is there stays",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f) and run again: what is there stays",
    errno.EACCES: "choose a folder that you may write to",
    errno.EROFS: "choose a folder on a writable file system",
    errno.ENOENT: "make the folder first",
    errno.EEXIST: "a file has that name: choose another",
    errno.ENOTDIR: "a file stands where a folder is needed: choose another place",
    errno.EISDIR: "a folder has that name: choose another",
    errno.EPERM: "choose a folder that you may write to",
    errno.EIO: "check that disk, or choose another: what is there stays",
    errno.ENAMETOOLONG: "choose a shorter name",
}


class CleanupFailed(SandlotError):
    """Deleting failed for good; `left` names every sandbox that may still exist."""

    kind = "cleanup_failed"

    def __init__(self, message: str, *, left: Sequence[str] = (), hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.left = tuple(left)
