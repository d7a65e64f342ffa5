"""Runs pytest and reports each test through a private channel that only the judge can check.

Called as `python -I -B THIS` with a request in JSON on standard input. Every module that the run relies on is imported
before the
task's tree is on the import path. One line a record goes to the file `out`, each with a code made from a key that only the
judge
has as well; the key is replaced after every record, so that code which finds today's key cannot rewrite what was said before.
"""

import hashlib
import hmac
import importlib
import importlib.util
import json
import os
import pathlib
import sys
from typing import Any, List, Optional

import pytest

REASON_CHARS = 300
KEEP = ("pytest", "_pytest", "pluggy")


class Channel:
    """Records, in order, each bound to all before it."""

    def __init__(self, path: str, secret: bytes) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        self._key = secret
        self.count = 0

    def say(self, *record: object) -> None:
        body = json.dumps([part.encode("utf-8", "replace").decode() if isinstance(part, str) else part for part in record])
        code = hmac.new(self._key, body.encode(), hashlib.sha256).hexdigest()
        self._key = hashlib.sha256(self._key + code.encode()).digest()
        self.count += 1
        line = (code + " " + body + "\n").encode()
        while line:
            line = line[os.write(self._file, line) :]


def reason_of(report: Any, tree: str) -> str:
    """Where (relative to the tree) and why, on one line, cut short."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr or "")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    if crash is None:
        return lines[-1][:REASON_CHARS]
    return f"{os.path.relpath(str(crash.path), tree)}:{crash.lineno}: {lines[0]}"[:REASON_CHARS]


class Reporter:
    """A pytest plugin: says what each test did, and adds the judge's own control tests."""

    def __init__(self, channel: Channel, tree: str, control: Optional[str]) -> None:
        self._channel = channel
        self._tree = tree
        self._control = control

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: pytest.Session, items: List[pytest.Item]) -> None:
        if self._control is None:
            return
        try:
            module = pytest.Module.from_parent(session, path=pathlib.Path(self._control))
        except TypeError:  # before pytest 7
            py = importlib.import_module("py")
            module = pytest.Module.from_parent(session, fspath=py.path.local(self._control))
        extra = list(session.genitems(module))
        items[:] = extra[::2] + items + extra[1::2]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._channel.say("collect", report.nodeid, reason_of(report, self._tree))

    def pytest_runtest_logreport(self, report: Any) -> None:
        outcome = report.outcome
        if hasattr(report, "wasxfail"):
            outcome = "xfailed" if report.skipped else "xpassed"
        elif report.failed and report.when != "call":
            outcome = "error"
        if report.when == "call" or outcome != "passed":
            reason = reason_of(report, self._tree) if report.failed else ""
            self._channel.say("test", report.nodeid, report.when, outcome, reason, round(report.duration, 4))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._channel.say("done", nodeid)


def release_shadowed(roots: List[str]) -> None:
    """Forget modules of the environment that the tree brings itself, so that tests get the tree's (a project that pytest
    uses)."""
    names = set()
    for root in roots:
        for entry in os.scandir(root) if os.path.isdir(root) else ():
            name, suffix = os.path.splitext(entry.name)
            if entry.is_dir() or suffix == ".py":
                names.add(entry.name if entry.is_dir() else name)
    standard = getattr(sys, "stdlib_module_names", sys.builtin_module_names)
    for loaded in list(sys.modules):
        top = loaded.partition(".")[0]
        origin = getattr(sys.modules[loaded], "__file__", None) or ""
        if top in names and top not in KEEP and top not in standard and "site-packages" in origin:
            del sys.modules[loaded]


def main() -> None:
    request = json.loads(sys.stdin.buffer.read().decode())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    channel = Channel(request["out"], bytes.fromhex(request["secret"]))
    os.chdir(request["tree"])
    roots = request["import_roots"]
    release_shadowed(roots)
    sys.path[:0] = roots
    os.environ["PYTHONPATH"] = os.pathsep.join(roots)  # for interpreters that tests start
    os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
    arguments = request["arguments"]
    if importlib.util.find_spec("xdist") is not None:
        arguments = ["-n", "0", *arguments]
    sys.argv[:] = ["pytest", *arguments]
    code = pytest.main(arguments, plugins=[Reporter(channel, request["tree"], request["control"])])
    channel.say("end", int(code), channel.count)
    sys.stdout.flush()
    os._exit(0)  # exit handlers belong to the code under test


main()
