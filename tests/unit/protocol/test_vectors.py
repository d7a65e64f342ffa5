"""The examples in `wire/vectors` as the Python side reads and writes them."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sandlot import limits
from sandlot.errors import ProtocolViolation
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.protocol.events import Broken
from sandlot.protocol.frames import decode, encode
from sandlot.protocol.session import Session

WIRE = Path(__file__).parents[3] / "wire"
GOOD = [row for name in ("init", "host") for row in json.loads((WIRE / "vectors" / f"{name}.json").read_text())]
BAD = json.loads((WIRE / "vectors" / "bad.json").read_text())
TO_DAEMON: dict[str, msgspec.msgpack.Decoder[Any]] = {
    "init": msgspec.msgpack.Decoder(r.ToInit),
    "host": msgspec.msgpack.Decoder(r.ToHost),
}


def name(row: dict[str, Any]) -> str:
    return f"{row['role']}-{row['direction']}-{row['name']}"


def plain(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("row", GOOD, ids=name)
def test_good_example_is_read(row: dict[str, Any]) -> None:
    """Every good frame is a message of the type it names."""
    raw = bytes.fromhex(row["hex"])
    assert int.from_bytes(raw[:4], "big") == len(raw) - 4
    message = decode(raw[4:]) if row["direction"] == "d2c" else TO_DAEMON[row["role"]].decode(raw[4:])
    assert message is not None
    config: Any = type(message).__struct_config__
    assert config.tag == row["json"]["t"]


@pytest.mark.parametrize("row", [row for row in GOOD if row["direction"] == "c2d"], ids=name)
def test_what_is_read_is_written_the_same(row: dict[str, Any]) -> None:
    """Reading an example and writing it again keeps every field that this version knows."""
    raw = bytes.fromhex(row["hex"])
    message = TO_DAEMON[row["role"]].decode(raw[4:])
    again = plain(msgspec.msgpack.decode(encode(message)[4:]))
    known = {field.encode_name for field in msgspec.structs.fields(message)} | {"t"}
    assert (
        again == {key: value for key, value in row["json"].items() if key in known and value is not None}
        or again == row["json"]
    )


@pytest.mark.parametrize("row", [row for row in BAD if row["direction"] == "d2c"], ids=name)
def test_bad_example_ends_the_connection(row: dict[str, Any]) -> None:
    """Every bad frame from a daemon is a breach that is told, and nothing else."""
    session = Session()
    session.link_up()
    session.receive(encode(a.Welcome(version=1, role="init")), now=0.0)
    session.outgoing()
    events = session.receive(bytes.fromhex(row["hex"]), now=0.0)
    assert [type(event) for event in events] == [Broken]
    assert isinstance(events[0], Broken)
    assert isinstance(events[0].error, ProtocolViolation)
    told = msgspec.msgpack.decode(session.outgoing()[4:], type=a.Error)
    assert (told.id, told.code) == (0, row["error"])


def test_files_are_what_the_generator_writes() -> None:
    """Nobody edits the examples by hand."""
    done = subprocess.run([sys.executable, WIRE / "generate.py", "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_message_has_an_example() -> None:
    """A message without an example is tested on one side only."""
    seen = {(row["role"], row["direction"], row["json"]["t"]) for row in GOOD}
    for role, union in (("init", r.ToInit), ("host", r.ToHost)):
        for kind in union.__args__:
            assert (role, "c2d", kind.__struct_config__.tag) in seen or (kind in r.Shared.__args__ and role == "host")
    either = {key for _, direction, key in seen if direction == "d2c"}
    assert either == {kind.__struct_config__.tag for kind in a.FromDaemon.__args__}


def test_numbers_are_those_of_the_contract() -> None:
    """`wire/limits.json` and `sandlot.limits` agree."""
    numbers = json.loads((WIRE / "limits.json").read_text())
    assert {key: getattr(limits, key.upper()) for key in numbers} == numbers
