"""Unified diffs as values: parse, apply exactly, cut in half, make from two trees. Pure; no `patch` or `git` is needed
anywhere.

Applying is strict: every context and removed line must match; only the position may have moved. A hunk that does not fit is an
error that names file and hunk, never a guess.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath

from sandlot.errors import BadRequest

_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_GIT = re.compile(r'^diff --git (?:"?a/)(.*?)"? (?:"?b/)(.*?)"?$')
_ESCAPE = re.compile(r'\\([0-7]{3}|[abtnvfr"\\])')
_ESCAPED = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "v": "\v", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}
_NO_NEWLINE = "\\ No newline at end of file"
CONTEXT_LINES = 3


class PatchError(BadRequest):
    """The text is no unified diff that can be applied, or it does not fit the file. `path` names the file, or is empty."""

    kind = "patch"

    def __init__(self, message: str, *, path: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.path = path


@dataclass(frozen=True, slots=True)
class Hunk:
    """One changed place: its lines with their leading ' ', '-' or '+', each with its own line end (or none, at the end of a
    file)."""

    old_start: int
    new_start: int
    lines: tuple[str, ...]

    @property
    def old(self) -> list[str]:
        return [line[1:] for line in self.lines if line[0] in " -"]

    @property
    def new(self) -> list[str]:
        return [line[1:] for line in self.lines if line[0] in " +"]

    @property
    def changed_lines(self) -> int:
        return sum(line[0] in "-+" for line in self.lines)


@dataclass(frozen=True, slots=True)
class FilePatch:
    """What happens to one file. `old` None: it is made; `new` None: it is removed; both and different: it is renamed."""

    old: str | None
    new: str | None
    hunks: tuple[Hunk, ...] = ()
    mode: int | None = None
    """Permission bits asked for, or None to keep them."""
    copy: bool = False

    @property
    def path(self) -> str:
        path = self.new if self.new is not None else self.old
        assert path is not None, "a file patch names at least one side"
        return path

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(p for p in (self.old, self.new) if p is not None)


@dataclass(slots=True)
class _Draft:
    """A file patch while its header lines are being read."""

    old: str | None = None
    new: str | None = None
    created: bool = False
    deleted: bool = False
    mode: int | None = None
    copy: bool = False
    hunks: list[Hunk] = field(default_factory=list)

    def finish(self) -> FilePatch:
        old = None if self.created else self.old
        new = None if self.deleted else self.new
        if old is None and new is None:
            raise PatchError("a diff names no file")
        return FilePatch(old, new, tuple(self.hunks), self.mode, self.copy)


def parse_patch(text: str) -> tuple[FilePatch, ...]:
    """Read a unified diff, git's extended headers included.

    Raises:
        PatchError: not a unified diff, a path outside the tree, or a binary patch (the caller's fault).
    """
    lines = _lines(text)
    drafts: list[_Draft] = []
    position = 0
    while position < len(lines):
        line = lines[position].rstrip("\n")
        if line.startswith("diff --git "):
            drafts.append(_from_git_line(line))
        elif line.startswith("--- ") and position + 1 < len(lines) and lines[position + 1].startswith("+++ "):
            _read_names(drafts, line, lines[position + 1].rstrip("\n"))
            position += 1
        elif line.startswith("@@ "):
            if not drafts:
                raise PatchError("a hunk comes before any file name")
            hunk, position = _read_hunk(lines, position, drafts[-1])
            drafts[-1].hunks.append(hunk)
            continue
        elif drafts:
            _read_header(drafts[-1], line)
        position += 1
    if text.strip() and not drafts:
        raise PatchError("the patch is no unified diff")
    return tuple(draft.finish() for draft in drafts)


def apply_file(patch: FilePatch, content: bytes | None) -> bytes | None:
    """The file after the patch: None when it is removed.

    Raises:
        PatchError: it does not fit: the file is missing or exists already, or a hunk's lines are nowhere in it.
    """
    if patch.old is None:
        if content is not None and content.strip():
            raise PatchError("the patch makes a file that exists already", path=patch.path)
        content = b""
    if content is None:
        raise PatchError("the patch changes a file that does not exist", path=patch.path)
    lines = _lines(content.decode("utf-8", "surrogateescape"))
    result: list[str] = []
    position = drift = 0
    for number, hunk in enumerate(patch.hunks, 1):
        old = hunk.old
        wanted = max(hunk.old_start - (1 if old else 0), 0) + drift
        found = _find(lines, old, wanted, position)
        if found is None:
            raise PatchError(f"hunk {number} does not fit", path=patch.path)
        result += lines[position:found]
        result += hunk.new
        position, drift = found + len(old), found - (wanted - drift)
    result += lines[position:]
    if patch.new is None:
        if "".join(result):
            raise PatchError("the patch removes a file but not all of its lines", path=patch.path)
        return None
    return "".join(result).encode("utf-8", "surrogateescape")


def first_half(patches: Sequence[FilePatch]) -> tuple[FilePatch, ...]:
    """The first half of all hunks, in order (rounded down, at least one when there are several); files left without any are
    left out."""
    total = sum(max(len(patch.hunks), 1) for patch in patches)
    budget = total // 2
    kept: list[FilePatch] = []
    for patch in patches:
        if budget <= 0:
            break
        hunks = patch.hunks[:budget]
        whole = len(hunks) == len(patch.hunks)
        # a removal or rename that is cut short would leave a file that no line accounts for
        kept.append(patch if whole else replace(patch, hunks=hunks, new=patch.new or patch.old))
        budget -= max(len(hunks), 1)
    return tuple(kept)


def touched(patches: Iterable[FilePatch]) -> frozenset[str]:
    """Every path that the patch reads, makes, changes or removes."""
    return frozenset().union(*(patch.paths for patch in patches))


def changed_lines(patches: Iterable[FilePatch]) -> int:
    """Added plus removed lines."""
    return sum(hunk.changed_lines for patch in patches for hunk in patch.hunks)


def diff_trees(old: Mapping[str, bytes], new: Mapping[str, bytes]) -> str:
    """A git-style unified diff from one set of text files to another, by path.

    Raises:
        PatchError: a changed file is not UTF-8 text, which a unified diff cannot carry.
    """
    return "".join(_diff_file(path, old.get(path), new.get(path)) for path in sorted({*old, *new}))


# --- reading ---------------------------------------------------------------------------------------------------------
def _lines(text: str) -> list[str]:
    """Lines with their ends; only a line feed ends a line (form feeds and the like are content)."""
    return [line for line in re.split(r"(?<=\n)", text) if line]


def _from_git_line(line: str) -> _Draft:
    match = _GIT.match(line)
    if match is None:
        return _Draft()
    return _Draft(old=_checked(match[1]), new=_checked(match[2]))


def _read_names(drafts: list[_Draft], old_line: str, new_line: str) -> None:
    if not drafts or drafts[-1].hunks or not _is_same_file(drafts[-1], old_line, new_line):
        drafts.append(_Draft())
    draft = drafts[-1]
    old, new = _name(old_line[4:]), _name(new_line[4:])
    draft.created |= old is None
    draft.deleted |= new is None
    draft.old = old or draft.old
    draft.new = new or draft.new


def _is_same_file(draft: _Draft, old_line: str, new_line: str) -> bool:
    names = {_name(old_line[4:]), _name(new_line[4:])} - {None}
    return draft.old is None or names <= {draft.old, draft.new}


def _name(text: str) -> str | None:
    """A path from a `---` or `+++` line without its a/ or b/ and time stamp; None for /dev/null."""
    text = text.split("\t", 1)[0].rstrip("\r")
    if text.startswith('"') and text.endswith('"') and len(text) > 1:
        text = _unquote(text[1:-1])
    if text == "/dev/null":
        return None
    return _checked(text[2:] if text[:2] in ("a/", "b/") else text)


def _unquote(text: str) -> str:
    def plain(match: re.Match[str]) -> str:
        code = match[1]
        return chr(int(code, 8)) if len(code) == 3 else _ESCAPED[code]

    return _ESCAPE.sub(plain, text).encode("latin-1", "replace").decode("utf-8", "replace")


def _checked(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise PatchError(f"the patch names a path outside the tree: {path[:200]!r}")
    return str(PurePosixPath(path))


def _read_header(draft: _Draft, line: str) -> None:
    if line.startswith(("GIT binary patch", "Binary files ")):
        raise PatchError("binary patches are not supported", path=draft.new or draft.old or "")
    for prefix in ("new file mode ", "new mode ", "deleted file mode "):
        if line.startswith(prefix):
            draft.mode = _mode(line.removeprefix(prefix))
    draft.created |= line.startswith("new file mode ")
    draft.deleted |= line.startswith("deleted file mode ")
    for prefix in ("rename from ", "copy from "):
        if line.startswith(prefix):
            draft.old = _checked(line.removeprefix(prefix))
    for prefix in ("rename to ", "copy to "):
        if line.startswith(prefix):
            draft.new = _checked(line.removeprefix(prefix))
            draft.copy |= prefix == "copy to "


def _mode(text: str) -> int:
    try:
        return int(text, 8) & 0o777
    except ValueError:
        raise PatchError(f"the patch has an impossible file mode {text[:20]!r}") from None


def _read_hunk(lines: Sequence[str], position: int, draft: _Draft) -> tuple[Hunk, int]:
    header = _HUNK.match(lines[position])
    path = draft.new or draft.old or ""
    if header is None:
        raise PatchError("a hunk header is malformed", path=path)
    old_left, new_left = (int(header[n]) if header[n] is not None else 1 for n in (2, 4))
    body: list[str] = []
    position += 1
    while old_left > 0 or new_left > 0:
        if position >= len(lines):
            raise PatchError("the patch ends in the middle of a hunk", path=path)
        line = lines[position]
        kind = line[0] if line != "\n" else " "  # some mailers strip the space of an empty context line
        if line.startswith(_NO_NEWLINE[:4]):
            _strip_end(body)
        elif kind in " -+":
            body.append(line if line != "\n" else " \n")
            old_left -= kind != "+"
            new_left -= kind != "-"
        else:
            raise PatchError("a hunk has a line that is neither context nor change", path=path)
        position += 1
    if position < len(lines) and lines[position].startswith(_NO_NEWLINE[:4]):
        _strip_end(body)
        position += 1
    return Hunk(int(header[1]), int(header[3]), tuple(body)), position


def _strip_end(body: list[str]) -> None:
    if body:
        body[-1] = body[-1].removesuffix("\n")


# --- applying --------------------------------------------------------------------------------------------------------
def _find(lines: Sequence[str], old: Sequence[str], wanted: int, lowest: int) -> int | None:
    """The place nearest to `wanted`, not before `lowest`, where all of `old` stands."""
    if not old:
        return min(max(wanted, lowest), len(lines))
    for place in _outwards(wanted, lowest, len(lines) - len(old)):
        if list(lines[place : place + len(old)]) == list(old):
            return place
    return None


def _outwards(middle: int, low: int, high: int) -> Iterator[int]:
    for distance in range(max(high, middle) - min(low, middle) + 1):
        for place in dict.fromkeys((middle - distance, middle + distance)):
            if low <= place <= high:
                yield place


# --- making ----------------------------------------------------------------------------------------------------------
def _diff_file(path: str, old: bytes | None, new: bytes | None) -> str:
    if old == new:
        return ""
    before, after = _text(path, old), _text(path, new)
    head = f"diff --git a/{path} b/{path}\n"
    if old is None:
        head += "new file mode 100644\n"
    if new is None:
        head += "deleted file mode 100644\n"
    names = ("/dev/null" if old is None else f"a/{path}", "/dev/null" if new is None else f"b/{path}")
    body = difflib.unified_diff(_lines(before), _lines(after), *names, n=CONTEXT_LINES)
    return head + "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}\n" for line in body)


def _text(path: str, content: bytes | None) -> str:
    try:
        return (content or b"").decode("utf-8")
    except UnicodeDecodeError:
        raise PatchError("a changed file is not UTF-8 text", path=path) from None
