"""What a caller says of a command, checked and turned into wire fields; what the daemon says of its end, as a `Result`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypedDict

from sandlot.errors import ArgumentTooLong, BadRequest
from sandlot.limits import (
    DEFAULT_CAP_BYTES,
    MAX_ARGV_BYTES,
    MAX_CAP_BYTES,
    MAX_ENV_BYTES,
    MAX_PATH_BYTES,
    MAX_SCRIPT_BYTES,
)
from sandlot.protocol.answers import Exit, Kept
from sandlot.result import Result, Stream, Usage
from sandlot.spec import parse_size

Text = str | bytes
Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Command = str | Sequence[Text | os.PathLike[str]]
Environment = Mapping[str, Text | None]
Keep = Literal["both", "head", "tail"]

_NOTHING = Stream()
_ITEM_BYTES = 3
"""What each argument or variable costs on the wire besides its own bytes: a million empty ones are too many as well."""


class Program(TypedDict, total=False):
    """The fields of `exec` that say what is run and as whom."""

    argv: tuple[bytes, ...] | None
    script: bytes | None
    cwd: bytes | None
    env: tuple[bytes, ...]
    user: str | None


def program(cmd: Command, *, cwd: Path | None = None, env: Environment | None = None, user: str | int | None = None) -> Program:
    """
    Raises:
        BadRequest, ArgumentTooLong: an argument that can never work.
    """
    fields: Program = {}
    if isinstance(cmd, str):
        fields["script"] = encode_script(cmd)
    else:
        fields["argv"] = encode_argv(cmd)
    if cwd is not None:
        fields["cwd"] = encode_path(cwd)
    if env:
        fields["env"] = encode_env(env)
    if user is not None:
        fields["user"] = str(user)
    return fields


def encode_script(script: str) -> bytes:
    data = encode_text(script, "a command")
    if not data:
        raise BadRequest("the command is empty")
    if len(data) > MAX_SCRIPT_BYTES:
        raise ArgumentTooLong(f"a script of {len(data)} bytes; at most {MAX_SCRIPT_BYTES}", hint="run it from a file")
    return data


def encode_argv(items: object) -> tuple[bytes, ...]:
    if isinstance(items, (bytes, bytearray)) or not isinstance(items, Sequence):
        raise BadRequest(f"a command is a str for the shell or a list of arguments, not {type(items).__name__}")
    argv = tuple(encode_text(os.fspath(item), "an argument") for item in items)
    if not argv or not argv[0]:
        raise BadRequest("the list of arguments is empty, or its program is")
    size = sum(map(len, argv)) + _ITEM_BYTES * len(argv)
    if size > MAX_ARGV_BYTES:
        raise ArgumentTooLong(f"arguments of {size} bytes; at most {MAX_ARGV_BYTES}", hint="pass data by stdin or by a file")
    return argv


def encode_env(env: Environment) -> tuple[bytes, ...]:
    entries = []
    for name, value in env.items():
        key = encode_text(name, "a variable's name")
        if not key or b"=" in key:
            raise BadRequest(f"{name!r} is no name for a variable")
        entries.append(key if value is None else key + b"=" + encode_text(value, f"the variable {name}"))
    size = sum(map(len, entries)) + _ITEM_BYTES * len(entries)
    if size > MAX_ENV_BYTES:
        raise ArgumentTooLong(f"an environment of {size} bytes; at most {MAX_ENV_BYTES}")
    return tuple(entries)


def encode_path(path: Path) -> bytes:
    data = encode_text(os.fspath(path), "a path")
    if not data:
        raise BadRequest("the path is empty")
    if len(data) > MAX_PATH_BYTES:
        raise ArgumentTooLong(f"a path of {len(data)} bytes; at most {MAX_PATH_BYTES}")
    return data


def encode_text(text: Text, what: str) -> bytes:
    """Bytes as they are; text as UTF-8, with the bytes that `surrogateescape` carries."""
    if isinstance(text, bytes):
        data = text
    elif isinstance(text, str):
        try:
            data = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise BadRequest(f"{what} has text that is no Unicode: {error.reason}") from None
    else:
        raise BadRequest(f"{what} must be str or bytes, not {type(text).__name__}")
    if b"\0" in data:
        raise BadRequest(f"{what} has a NUL byte")
    return data


def encode_timeout(timeout: object) -> int | None:
    """Seconds to whole milliseconds, rounded up."""
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < math.inf:
        raise BadRequest(f"timeout must be a positive number of seconds or None, got {timeout!r}")
    return min(math.ceil(timeout * 1000), 2**53)


def encode_cap(cap: int | str) -> int:
    if cap == DEFAULT_CAP_BYTES:
        return DEFAULT_CAP_BYTES
    size = parse_size(cap, "cap")
    if size > MAX_CAP_BYTES:
        raise BadRequest(f"cap is at most {MAX_CAP_BYTES} bytes, got {size}", hint="use stream() for more output than that")
    return size


# --- the end of a command ----------------------------------------------------------------------------------------------
def result_of(exit: Exit, out: Sequence[bytes] = (), err: Sequence[bytes] = ()) -> Result:
    """The result of a collected command: what came in chunks before the exit, and what the exit brings itself."""
    return Result(
        exit.code,
        exit.signal,
        exit.timed_out,
        exit.oom,
        _stream_of(exit.out, out),
        _stream_of(exit.err, err),
        Usage(exit.wall_us / 1e6, exit.user_us / 1e6, exit.sys_us / 1e6, exit.peak_bytes),
        exit.spawn_us / 1e6,
        exit.unenforced,
    )


def _stream_of(kept: Kept, chunks: Sequence[bytes]) -> Stream:
    if kept.total == 0:
        return _NOTHING
    return Stream(b"".join((*chunks, kept.d)) if chunks else kept.d, kept.total, kept.head)
