"""Putting patches and hidden tests into a sandbox. Deciding what a file becomes is `patch`'s; here it is only read and
written."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from sandlot.errors import SandboxFileError, SandboxFileNotFound
from sandlot.sandbox import Sandbox
from sandlot.tasks.patch import FilePatch, PatchError, apply_file, parse_patch, touched
from sandlot.tasks.task import HiddenTests, Task


async def apply_patch(box: Sandbox, tree: str, patches: Iterable[FilePatch]) -> None:
    """Apply a unified diff to the tree inside the sandbox; needs no `patch` or `git` there.

    Raises:
        PatchError: it does not fit. Files before the one named are already changed.
    """
    for patch in patches:
        await _apply_one(box, PurePosixPath(tree), patch)


async def place_hidden_tests(box: Sandbox, tree: str, hidden: HiddenTests) -> None:
    """Lay hidden tests over a tree in the sandbox: the directory, then removals, then the diff.

    Raises:
        PatchError: the diff does not fit the tree (the task's fault).
    """
    if hidden.directory is not None:
        await box.upload(hidden.directory, tree)
    for path in hidden.removed:
        await box.remove(f"{tree}/{path}", missing_ok=True)
    await apply_patch(box, tree, parse_patch(hidden.patch))


def hidden_paths(task: Task) -> frozenset[str]:
    """Files, relative to the tree, that hidden tests touch or that hold expected tests: none of them is the agent's to
    change."""
    return touched(parse_patch(task.hidden.patch)) | frozenset(task.hidden.removed) | _files(task.hidden) | expected_files(task)


def expected_files(task: Task) -> frozenset[str]:
    """Files that hold the expected tests, as their ids say (the part before `::`)."""
    return frozenset(test.partition("::")[0] for test in task.expected if "::" in test)


def _files(hidden: HiddenTests) -> frozenset[str]:
    if hidden.directory is None:
        return frozenset()
    found = (path for path in hidden.directory.rglob("*") if path.is_symlink() or not path.is_dir())
    return frozenset(str(path.relative_to(hidden.directory)) for path in found)


async def _apply_one(box: Sandbox, tree: PurePosixPath, patch: FilePatch) -> None:
    before = None if patch.old is None else await _read(box, tree / patch.old)
    if patch.old is None and patch.new is not None:
        before = await _read(box, tree / patch.new)
    after = apply_file(patch, before)
    if after is not None and patch.new is not None:
        mode = patch.mode
        if mode is None and patch.old is not None and patch.old != patch.new:
            mode = (await box.stat(str(tree / patch.old))).mode & 0o7777
        await box.write(str(tree / patch.new), after, mode=mode)
    if patch.old is not None and patch.old != patch.new and not patch.copy:
        await box.remove(str(tree / patch.old))


async def _read(box: Sandbox, path: PurePosixPath) -> bytes | None:
    try:
        return await box.read(str(path))
    except SandboxFileNotFound:
        return None
    except SandboxFileError as error:
        raise PatchError(f"cannot be patched: {error.message}", path=str(path)) from error
