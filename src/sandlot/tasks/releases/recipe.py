"""What a task from releases is made of, and what comes out."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from sandlot.errors import BadRequest, SandlotError

_NAME: Final = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$")
_VERSION: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$")
_SHA256: Final = re.compile(r"^[0-9a-f]{64}$")


class Unsuitable(SandlotError):
    """These two releases make no task: too little changed, nothing fails before and passes after, or half of the change is
    enough."""

    kind = "unsuitable"


class BuildFailed(SandlotError):
    """Downloading, building or installing failed inside the sandbox; the message ends with what the tool said last."""

    kind = "build_failed"


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One line of a list for `sandlot tasks from-releases --list`. Only the first three are needed."""

    project: str
    old: str
    new: str
    old_sha256: str | None = None
    """Of the source distribution; None: whatever the registry serves, and it is noted down."""
    new_sha256: str | None = None
    dependencies: tuple[str, ...] | None = None
    """Requirements as pip reads them, all of them pinned, pytest among them. When each has a `--hash`, pip must check them all.
    None: found out, by building and installing the older release with its test extras."""
    source_paths: tuple[str, ...] | None = None
    """Files and directories whose change is the gold patch. None: the packages that the release installs."""
    test_paths: tuple[str, ...] | None = None
    """None: `tests`, `test` or `testing` at the top, else the `test_*.py` there."""
    import_roots: tuple[str, ...] | None = None
    """None: `src` where the packages are in it, else the top."""
    pytest_arguments: tuple[str, ...] = ()
    test_limit_s: float = 300.0
    """Seconds for one run of the tests: far above what they take, since a run that is stopped counts against the agent."""

    def __post_init__(self) -> None:
        if not _NAME.match(self.project):
            raise BadRequest(f"{self.project!r} is no name of a project")
        for version in (self.old, self.new):
            if not _VERSION.match(version):
                raise BadRequest(f"{version!r} is no version")
        for digest in (self.old_sha256, self.new_sha256):
            if digest is not None and not _SHA256.match(digest):
                raise BadRequest(f"{digest[:80]!r} is no SHA-256 in hex")
        for path in (*(self.source_paths or ()), *(self.test_paths or ()), *(self.import_roots or ())):
            if path.startswith("/") or ".." in path.split("/") or not path:
                raise BadRequest(f"{path!r} must be a path inside the release")

    @property
    def id(self) -> str:
        """The instance id of the task."""
        return f"{self.project}-{self.old}-{self.new}"


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """What running both releases' code against the newer tests showed."""

    fail_to_pass: tuple[str, ...]
    pass_to_pass: tuple[str, ...]
    unstable: tuple[str, ...]
    """Not the same in every run: in neither list."""
    set_aside: dict[str, str]
    """Repaired by the change, but telling nothing about behaviour: only an import, a name or the version number fails. By
    reason."""
    seconds: float
    """Of one run, the median."""


def decode_recipe(line: bytes, _number: int = 0) -> Recipe:
    """One line of a list.

    Raises:
        BadRequest, msgspec.MsgspecError: it is malformed; the message names the field.
    """
    return msgspec.json.decode(line, type=Recipe)
