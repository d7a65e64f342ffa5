"""Field types that several messages share: bounded numbers and closed sets of words."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

U8 = Annotated[int, Meta(ge=0, le=255)]
U32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
U63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]
"""A count, size or time that fits a signed 64-bit number, as file offsets do."""
Offset = U63
StreamNumber = Annotated[int, Meta(ge=0, le=2)]

Mode = Literal["collect", "stream", "job"]
Keep = Literal["both", "head", "tail"]
KillScope = Literal["tree", "leader"]
SignalScope = Literal["tree", "leader", "group"]
FileKind = Literal["file", "dir", "link", "fifo", "socket", "char", "block"]
EntryKind = Literal["file", "dir", "link", "hard", "whiteout", "gone"]
Role = Literal["init", "host"]

TO_SANDBOX, STDOUT, STDERR = 0, 1, 2
"""Streams: 0 towards the sandbox (standard input, file data up), 1 standard output or file data down, 2 standard error."""
FILE_DATA = STDOUT
