"""Tasks from releases: the parts that decide, on trees and outcomes made by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandlot.errors import BadRequest
from sandlot.tasks.patch import apply_file, parse_patch, touched
from sandlot.tasks.releases.calibrate import sort_tests
from sandlot.tasks.releases.index import CERTIFICATES_INSIDE, index_of_client
from sandlot.tasks.releases.inside import missing_modules
from sandlot.tasks.releases.recipe import Recipe, Unsuitable, decode_recipe
from sandlot.tasks.releases.trees import compare, copy_tests, find_layout
from sandlot.tasks.task import Ending, Outcome

RECIPE = Recipe(project="pkg", old="1.0", new="1.1")
OLD = {
    "src/pkg/__init__.py": "".join(f"x{number} = {number}\n" for number in range(40)),
    "src/pkg/gone.py": "g = 1\n",
    "tests/test_a.py": "old",
    "tests/test_gone.py": "old",
    "CHANGES.md": "# 1.0\nfirst\n",
}
NEW = {
    "src/pkg/__init__.py": "".join(f"x{number} = {number + 1}\n" for number in range(40)),
    "src/pkg/made.py": "m = 1\n",
    "tests/test_a.py": "new",
    "tests/data/x.bin": "\x00",
    "tests/__pycache__/test_a.pyc": "compiled",
    "CHANGES.md": "# 1.1\nsecond\n# 1.0\nfirst\n",
}


def _tree(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return folder


def test_gold_patch_is_the_change_of_the_sources_alone(tmp_path: Path) -> None:
    """Made, changed and removed source files; neither tests nor notes. The notes' new lines become the problem statement."""
    old, new = _tree(tmp_path / "old", OLD), _tree(tmp_path / "new", NEW)
    layout = find_layout(RECIPE, old, new)
    assert (layout.sources, layout.tests, layout.import_roots) == (("src/pkg",), ("tests",), ("src",))
    difference = compare(RECIPE, layout, old, new)
    patches = parse_patch(difference.patch)
    assert touched(patches) == {"src/pkg/__init__.py", "src/pkg/gone.py", "src/pkg/made.py"}
    assert apply_file(patches[0], OLD["src/pkg/__init__.py"].encode()) == NEW["src/pkg/__init__.py"].encode()
    assert difference.removed_tests == ("tests/test_gone.py",)
    assert "second" in difference.statement
    assert "first" not in difference.statement


def test_hidden_tests_are_the_newer_ones_without_what_is_generated(tmp_path: Path) -> None:
    """Data files come along; compiled files and links that lead out of the release do not."""
    new = _tree(tmp_path / "new", NEW)
    (new / "tests" / "out").symlink_to("/etc/passwd")
    (new / "tests" / "in").symlink_to("test_a.py")
    copy_tests(find_layout(RECIPE, new, new), new, tmp_path / "hidden")
    found = {str(path.relative_to(tmp_path / "hidden")) for path in (tmp_path / "hidden").rglob("*") if not path.is_dir()}
    assert found == {"tests/test_a.py", "tests/data/x.bin", "tests/in"}


def test_too_small_a_change_is_no_task(tmp_path: Path) -> None:
    """With the numbers."""
    old = _tree(tmp_path / "old", OLD)
    new = _tree(tmp_path / "new", {**OLD, "src/pkg/gone.py": "g = 2\n"})
    with pytest.raises(Unsuitable, match="only 2 lines"):
        compare(RECIPE, find_layout(RECIPE, old, new), old, new)


@pytest.mark.parametrize(
    ("files", "message"),
    [({"src/pkg/__init__.py": ""}, "no tests"), ({"tests/test_a.py": "", "setup.py": ""}, "no package")],
)
def test_releases_without_tests_or_packages_are_no_task(tmp_path: Path, files: dict[str, str], message: str) -> None:
    """The message says what to name in a list."""
    tree = _tree(tmp_path, files)
    with pytest.raises(Unsuitable, match=message):
        find_layout(RECIPE, tree, tree)


def test_flat_layout_is_found_too(tmp_path: Path) -> None:
    """Packages and modules at the top; set-up files are no packages."""
    tree = _tree(tmp_path, {"pkg/__init__.py": "", "mod.py": "", "setup.py": "", "test_mod.py": "", "docs/__init__.py": ""})
    layout = find_layout(RECIPE, tree, tree)
    assert (layout.sources, layout.tests, layout.import_roots) == (("mod.py", "pkg"), ("test_mod.py",), (".",))


def _run(**outcomes: tuple[Outcome, str] | Outcome) -> dict[str, Ending]:
    return {test: Ending(one) if isinstance(one, str) else Ending(*one) for test, one in outcomes.items()}


def test_tests_are_sorted_by_what_both_sides_show() -> None:
    """Repaired, kept, unstable; what fails after the change is in no list."""
    before = [_run(repaired=("failed", "assert 1 == 2"), kept="passed", flaky="passed", broken="passed", skipped="skipped")] * 2
    before = [before[0], before[1] | _run(flaky="failed")]
    after = [_run(repaired="passed", kept="passed", flaky="passed", broken="failed", skipped="skipped", added="failed")] * 2
    found = sort_tests(before, after, tests=("tests",), versions=("1.0", "1.1"))
    assert (found.fail_to_pass, found.pass_to_pass, found.unstable) == (("repaired",), ("kept",), ("flaky",))


@pytest.mark.parametrize(
    ("ending", "reason"),
    [
        (None, "missing before"),
        (("error", "fixture"), "did not run before"),
        (("skipped", ""), "did not run before"),
        (("failed", "tests/test_a.py:3: ImportError: cannot import name 'x'"), "asks for a new name"),
        (("failed", "tests/test_a.py:3: AttributeError: module 'p' has no attribute 'y'"), "asks for a new name"),
        (("failed", "tests/test_a.py:3: AssertionError: assert '1.0' == '1.1'"), "asks for the version number"),
    ],
)
def test_repaired_tests_that_tell_nothing_are_set_aside(ending: tuple[Outcome, str] | None, reason: str) -> None:
    """Nobody could know a name that is not there yet, and the version number is no behaviour."""
    before = [{} if ending is None else _run(t=ending)] * 2
    found = sort_tests(before, [_run(t="passed")] * 2, tests=("tests",), versions=("1.0", "1.1"))
    assert (found.fail_to_pass, found.set_aside) == ((), {"t": reason})


def test_name_that_the_code_itself_misses_is_a_fault_like_any_other() -> None:
    """An exception inside the package tells of its behaviour."""
    before = [_run(t=("failed", "src/pkg/core.py:9: AttributeError: 'State' object has no attribute 'x'"))] * 2
    assert sort_tests(before, [_run(t="passed")] * 2, tests=("tests",), versions=("1.0", "1.1")).fail_to_pass == ("t",)


@pytest.mark.parametrize(
    "changes",
    [
        {"project": "../x"},
        {"project": "a b"},
        {"old": "--index-url=x"},
        {"new": ""},
        {"old_sha256": "abc"},
        {"test_paths": ["../x"]},
        {"source_paths": ["/etc"]},
        {"unknown": 1},
        {"new": None},
    ],
)
def test_recipes_that_could_mean_something_else_are_refused(changes: dict[str, object]) -> None:
    """Names and versions go to pip's command line, paths to the tree."""
    import msgspec

    row = {"project": "pkg", "old": "1.0", "new": "1.1", **changes}
    with pytest.raises((BadRequest, msgspec.MsgspecError)):
        decode_recipe(msgspec.json.encode({key: value for key, value in row.items() if value is not None}))


def test_modules_that_tests_miss_are_plain_names_only() -> None:
    """The words come from inside, and go to pip's command line."""
    texts = ["E   ModuleNotFoundError: No module named 'yaml'", "No module named 'a.b.c'", "No module named '--index-url=x'"]
    assert missing_modules(texts) == {"yaml", "a"}


def test_examples_are_recipes_of_at_least_five_projects() -> None:
    """Eight or more, pinned by hash."""
    lines = Path("examples/releases.jsonl").read_bytes().splitlines()
    recipes = [decode_recipe(line) for line in lines]
    assert len(recipes) >= 8
    assert len({recipe.project for recipe in recipes}) >= 5
    assert all(recipe.old_sha256 and recipe.new_sha256 and recipe.dependencies for recipe in recipes)
    assert all("==" in pin for recipe in recipes for pin in recipe.dependencies or ())


def test_registry_settings_come_from_variables_over_files(tmp_path: Path) -> None:
    """As pip has it; the certificates go along as content, and nothing else of the client does."""
    config = tmp_path / "pip.conf"
    bundle = tmp_path / "ca.pem"
    bundle.write_bytes(b"certificates")
    config.write_text(f"[global]\nindex-url = https://files\nproxy = http://proxy\ncert = {bundle}\nfind-links = /local\n")
    environment = {"PIP_INDEX_URL": "https://variables", "HTTPS_PROXY": "http://other", "SECRET": "s", "HOME": "/nowhere"}
    index = index_of_client(environment, (config,))
    assert index.certificates == b"certificates"
    assert {
        "PIP_INDEX_URL": "https://variables",
        "PIP_PROXY": "http://proxy",
        "HTTPS_PROXY": "http://other",
        "PIP_CERT": CERTIFICATES_INSIDE,
    }.items() <= index.environment.items()
    assert not {"SECRET", "HOME", "PIP_FIND_LINKS"} & set(index.environment)


def test_without_settings_pip_keeps_its_own(tmp_path: Path) -> None:
    """No file, no variable: nothing is set that says where packages come from. A file that cannot be read changes nothing."""
    (tmp_path / "pip.conf").write_text("no section\n")
    index = index_of_client({}, (tmp_path / "pip.conf", tmp_path / "missing"))
    assert index.certificates is None
    assert not [name for name in index.environment if "INDEX" in name or "CERT" in name]
