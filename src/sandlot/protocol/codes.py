"""The one map from the wire's error codes to exception classes. The daemon sends a code; what it means is decided here."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

from sandlot import errors
from sandlot.protocol.answers import Error

Maker = Callable[[str, Error], errors.SandlotError]


def error_from(error: Error) -> errors.SandlotError:
    """The exception that an `error` message stands for; an unknown code counts as `internal`."""
    text = printable(error.message) or error.code
    return CODES.get(error.code, _internal)(text, error)


def printable(text: str) -> str:
    """Text from a daemon without control characters: it ends up on terminals and in logs."""
    return "".join(char if char.isprintable() else "\ufffd" for char in text[:1024])


def _plain(kind: Callable[..., errors.SandlotError], hint: str = "") -> Maker:
    return lambda text, _error: kind(text, hint=hint)


def _file(kind: type[errors.SandboxFileError], number: int | None = None) -> Maker:
    def make(text: str, error: Error) -> errors.SandlotError:
        path = (error.path or b"").decode("utf-8", "surrogateescape")
        return kind(text, path=path, number=number if number is not None else error.errno or kind.errno_default)

    return make


def _gone(text: str, error: Error) -> errors.SandlotError:
    return errors.SandboxGone(text, why=error.why if error.why in GONE_REASONS else "unknown")


def _internal(text: str, error: Error) -> errors.SandlotError:
    return errors.DaemonFault(text if error.code == "internal" else f"{printable(error.code)}: {text}")


GONE_REASONS: Final = frozenset(
    {"oom", "killed", "exited", "lease_expired", "idle", "lifetime", "host_closing", "evicted", "node_lost", "unknown"}
)

CODES: Final[dict[str, Maker]] = {
    "version": _plain(errors.Unsupported, "use the same release of client and daemon"),
    "protocol_error": _plain(errors.ProtocolViolation),
    "unknown_message": _plain(errors.Unsupported, "the daemon is older than this client"),
    "bad_request": _plain(errors.BadRequest),
    "too_many": _plain(errors.Capacity),
    "busy": _plain(errors.Capacity),
    "no_such_key": _plain(errors.BadRequest, "no command with this key is running, and no result of it is kept"),
    "moved": _plain(errors.Closed, "another call attached to this command and receives it now"),
    "cancelled": _plain(errors.Closed),
    "unsupported": _plain(errors.Unsupported),
    "user_unknown": _plain(errors.BadRequest),
    "user_unsupported": _plain(errors.UserUnsupported),
    "not_found": _file(errors.SandboxFileNotFound),
    "not_a_directory": _file(errors.SandboxNotADirectory),
    "is_a_directory": _file(errors.SandboxIsADirectory),
    "permission": _file(errors.SandboxPermissionDenied),
    "exists": _file(errors.SandboxFileExists),
    "not_empty": _file(errors.SandboxFileError, errno.ENOTEMPTY),
    "loop": _file(errors.SandboxFileError, errno.ELOOP),
    "name_too_long": _file(errors.SandboxFileError, errno.ENAMETOOLONG),
    "argument_too_long": _plain(errors.ArgumentTooLong),
    "no_space": _file(errors.SandboxNoSpace),
    "read_only": _file(errors.SandboxFileError, errno.EROFS),
    "io": _file(errors.SandboxFileError),
    "image": _plain(errors.ImageInvalid),
    "capacity": _plain(errors.Capacity),
    "limit_unenforceable": _plain(errors.LimitUnenforceable),
    "gone": _gone,
    "internal": _internal,
}  # fmt: skip
