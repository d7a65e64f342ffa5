"""The steps that third-party code takes part in: downloading, unpacking, building, installing. All of them run inside a sandbox
with a network; this machine only sees the files that come out.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sandlot.errors import CommandError
from sandlot.result import Result
from sandlot.sandbox import Sandbox
from sandlot.spec import Spec
from sandlot.tasks.examine import Examination, run_tests
from sandlot.tasks.releases.index import CERTIFICATES_INSIDE, Index
from sandlot.tasks.releases.recipe import BuildFailed, Recipe

ENVIRONMENT: Final = "/opt/sandlot/env"
"""Where the virtual environment lies, in the building sandbox and in every sandbox of the task."""

PYTHON: Final = f"{ENVIRONMENT}/bin/python"

STEP_LIMIT_S: Final = 900.0
_WORK: Final = "/tmp/releases"
_TEST_EXTRAS: Final = ("test", "tests", "testing")

MISSING_ROUNDS: Final = 4
"""Times that tests are run to see which modules they miss: one missing module can hide another."""

_MISSING: Final = re.compile(r"No module named '([A-Za-z_][A-Za-z0-9_]*)")
_PROJECTS: Final = {
    "attr": "attrs",
    "bs4": "beautifulsoup4",
    "dateutil": "python-dateutil",
    "pkg_resources": "setuptools",
    "yaml": "PyYAML",
}
"""Projects whose module has another name."""

# Tar and zip members are hostile input even here: the `data` filter refuses what points out of the folder.
_UNPACK: Final = textwrap.dedent("""\
    import pathlib, shutil, sys, tarfile, zipfile
    archive, target = sys.argv[1:]
    work = pathlib.Path(target + ".unpacking")
    if archive.endswith(".zip"):
        zipfile.ZipFile(archive).extractall(work)
    elif hasattr(tarfile, "data_filter"):
        tarfile.open(archive).extractall(work, filter="data")
    else:
        tarfile.open(archive).extractall(work)
    (top,) = [path for path in work.iterdir() if path.is_dir()]
    shutil.move(str(top), target)
    """)
_EXTRAS: Final = textwrap.dedent("""\
    import sys
    from importlib.metadata import distribution
    print(*distribution(sys.argv[1]).metadata.get_all("Provides-Extra") or ())
    """)


@dataclass(frozen=True, slots=True)
class Release:
    """One unpacked release inside the building sandbox."""

    archive: str
    tree: str
    sha256: str


def building_spec(index: Index, image: str = "host") -> Spec:
    """A sandbox that may reach the registry. Trusted as far as its network goes: it holds nothing but the registry settings."""
    return Spec(image=image, network="host", disk="4GiB", env={"HOME": "/root", "LANG": "C.UTF-8", **index.environment})


async def prepare(box: Sandbox, index: Index) -> str:
    """Make the virtual environment; its Python's version, such as "3.11".

    Raises:
        BuildFailed: the image's Python cannot make one.
    """
    if index.certificates is not None:
        await box.write(CERTIFICATES_INSIDE, index.certificates)
    await _step(box, ["python3", "-m", "venv", ENVIRONMENT], "making a virtual environment")
    await box.mkdir(_WORK)
    done = await _step(box, [PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], "asking Python's version")
    return done.stdout.strip()


async def fetch(box: Sandbox, project: str, version: str, sha256: str | None) -> Release:
    """Download one source distribution by pip and unpack it.

    Raises:
        BuildFailed: it is not there, it has no source distribution, or its hash is another.
    """
    folder = f"{_WORK}/{version}"
    # Of this project the source, of its build tools whatever is quickest.
    wanted = ["--no-deps", "--no-binary", project, f"{project}=={version}"]
    command = [PYTHON, "-m", "pip", "download", "-q", "-d", folder, *wanted]
    await _step(box, command, f"downloading {project} {version}")
    names = [entry.name for entry in await box.list(folder)]
    if len(names) != 1:
        raise BuildFailed(f"{project} {version}: expected one archive, found {len(names)}")
    archive = f"{folder}/{names[0]}"
    found = hashlib.sha256(await box.read(archive)).hexdigest()
    if sha256 is not None and found != sha256:
        raise BuildFailed(f"{project} {version}: the archive's SHA-256 is {found}, not {sha256}")
    tree = f"{_WORK}/tree-{version}"
    await _step(box, [PYTHON, "-I", "-c", _UNPACK, archive, tree], f"unpacking {project} {version}")
    return Release(archive, tree, found)


async def install(box: Sandbox, recipe: Recipe, old: Release) -> None:
    """Install what the tests need, as far as it is known.

    Raises:
        BuildFailed: a requirement or the older release could not be installed.
    """
    if recipe.dependencies is not None:
        await _install(box, recipe.dependencies)
    else:
        await _discover(box, recipe, old)


async def installed(box: Sandbox) -> tuple[str, ...]:
    """What is in the environment, as pins."""
    frozen = await _step(box, [PYTHON, "-m", "pip", "freeze"], "listing what is installed")
    return tuple(line for line in frozen.stdout.splitlines() if "==" in line)


async def bring_out(box: Sandbox, release: Release, target: Path) -> None:
    """Copy an unpacked release to this machine, to be read."""
    await box.download(release.tree, target)


async def freeze(box: Sandbox, old: Release, layer: Path, tree: str) -> None:
    """Make the directory that is laid over the image for the task: environment and older tree, at their places."""
    await _step(box, ["rm", "-rf", tree], "clearing the place of the tree")
    await _step(box, ["cp", "-a", old.tree, tree], "putting the tree in its place")
    for path in (ENVIRONMENT, tree):
        target = layer / path.lstrip("/")
        _make_open(layer, target.parent)
        await box.download(path, target)


def _make_open(layer: Path, folder: Path) -> None:
    """Directories that every user of a sandbox may enter, whatever the umask here."""
    for path in (layer, *reversed(folder.relative_to(layer).parents), folder.relative_to(layer)):
        (layer / path).mkdir(exist_ok=True)
        (layer / path).chmod(0o755)


async def _install(box: Sandbox, requirements: Sequence[str]) -> None:
    listing = f"{_WORK}/requirements.txt"
    await box.write(listing, "".join(f"{line}\n" for line in requirements).encode())
    hashed = ["--require-hashes"] if all("--hash=" in line for line in requirements) else []
    await _step(box, [PYTHON, "-m", "pip", "install", "-q", *hashed, "-r", listing], "installing the dependencies")


async def _discover(box: Sandbox, recipe: Recipe, old: Release) -> None:
    """pytest, the older release as it builds, and its test extras."""
    await _step(box, [PYTHON, "-m", "pip", "install", "-q", "pytest", old.archive], f"building {recipe.project} {recipe.old}")
    named = await _step(box, [PYTHON, "-I", "-c", _EXTRAS, recipe.project], "reading the extras")
    extras = [name for name in named.stdout.split() if name in _TEST_EXTRAS]
    if extras:
        wanted = f"{old.archive}[{','.join(extras)}]"
        await _step(box, [PYTHON, "-m", "pip", "install", "-q", wanted], "installing the test extras")


async def complete(box: Sandbox, what: Examination) -> None:
    """Run the newer release's own tests here, where there is a network, and install the modules that they miss."""
    for _ in range(MISSING_ROUNDS):
        ran = await run_tests(box, what)
        modules = sorted(missing_modules((*ran.collect_errors.values(), ran.output)))
        if not modules or not await _install_modules(box, modules):
            return


def missing_modules(texts: Iterable[str]) -> frozenset[str]:
    """Top-level modules that Python said it does not have. The text is untrusted: only plain names are taken."""
    return frozenset(name for text in texts for name in _MISSING.findall(text))


async def _install_modules(box: Sandbox, modules: Sequence[str]) -> bool:
    """By the name of the project that is theirs, most often the same. Whether any could be had."""
    had = False
    for module in modules:
        project = _PROJECTS.get(module, module)
        result = await box.exec([PYTHON, "-m", "pip", "install", "-q", project], timeout=STEP_LIMIT_S, cwd="/")
        had |= result.ok
    return had


async def _step(box: Sandbox, command: Sequence[str], what: str) -> Result:
    try:
        return await box.exec(list(command), timeout=STEP_LIMIT_S, cwd="/", check=True)
    except CommandError as error:
        said = [line for line in (error.result.stderr or error.result.stdout).splitlines() if line.strip()]
        errors = [line for line in said if line.lower().startswith("error")] or said
        last = errors[-1][:300] if errors else str(error)
        raise BuildFailed(f"{what}: {last}") from error
