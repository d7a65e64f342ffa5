"""A real image registry on a loopback port, for tests: Debian's docker-registry, storing in one folder."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CONFIG = """
version: 0.1
log: {{level: info, formatter: json}}
storage: {{filesystem: {{rootdirectory: {folder}/store}}, delete: {{enabled: true}}}}
http: {{addr: "127.0.0.1:0"}}
{auth}
"""
_LISTENING = re.compile(rb"listening on (127\.0\.0\.1:\d+)")


@contextmanager
def serve_registry(folder: Path, *, passwords: str = "") -> Iterator[str]:
    """Its `host:port`. With `passwords` (lines of an htpasswd file) it wants one of them."""
    program = shutil.which("docker-registry")
    if program is None:
        raise FileNotFoundError("docker-registry is missing: scripts/system-packages.sh installs it")
    auth = ""
    if passwords:
        (folder / "htpasswd").write_text(passwords)
        auth = f"auth: {{htpasswd: {{realm: test, path: {folder}/htpasswd}}}}"
    (folder / "config.yml").write_text(_CONFIG.format(folder=folder, auth=auth))
    log = folder / "log"
    with (
        log.open("wb") as out,
        subprocess.Popen([program, "serve", str(folder / "config.yml")], stdout=out, stderr=out) as process,
    ):
        try:
            yield _address(process, log)
        finally:
            process.terminate()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """As the registry says it once it listens."""
    while process.poll() is None:
        found = _LISTENING.search(log.read_bytes())
        if found is not None:
            return found[1].decode()
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError(f"docker-registry ended: {log.read_text()[-500:]}")
