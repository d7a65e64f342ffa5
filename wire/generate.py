"""Writes `wire/vectors/*.json`, the encoded examples that the Python and the Rust side both run.

    python wire/generate.py           write them
    python wire/generate.py --check   exit 1 when a file differs from what would be written

Good examples: `{"name", "role", "direction", "hex", "json"}`. `hex` is one whole frame, its length included. `json` is what
it holds, with bytes as `{"b64": ...}`; fields absent or unknown to the reader are not compared. `role` is the daemon's.
`links.json` is the other language's: `cargo run --example link_vectors` in `daemon` writes it and says how a row reads.
Bad examples: `{"name", "role", "direction", "hex", "error"}`: `hex` is the bytes after a hello, `error` the code of the answer.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import msgspec

sys.path.insert(0, str(Path(__file__).parent))

from examples import bad_examples, good_examples

FOLDER = Path(__file__).parent / "vectors"


def frame(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def plain(value: Any) -> Any:
    """JSON's view of a decoded frame."""
    if isinstance(value, bytes):
        return {"b64": base64.b64encode(value).decode()}
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def vectors() -> dict[str, list[dict[str, Any]]]:
    files: dict[str, list[dict[str, Any]]] = {"init": [], "host": [], "bad": []}
    for name, role, direction, message in good_examples():
        body = message if isinstance(message, bytes) else msgspec.msgpack.encode(message)
        row = {"name": name, "role": role, "direction": direction, "hex": frame(body).hex()}
        files[role].append(row | {"json": plain(msgspec.msgpack.decode(body))})
    for name, role, direction, raw, code in bad_examples():
        files["bad"].append({"name": name, "role": role, "direction": direction, "hex": raw.hex(), "error": code})
    return files


def main() -> int:
    wrong = 0
    for name, rows in vectors().items():
        text = "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n"  # a row a line: changes read well
        path = FOLDER / f"{name}.json"
        if "--check" in sys.argv[1:]:
            if not path.exists() or path.read_text() != text:
                sys.stderr.write(f"{path} is not what generate.py writes\n")
                wrong = 1
        else:
            path.write_text(text)
    return wrong


if __name__ == "__main__":
    raise SystemExit(main())
