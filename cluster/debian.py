"""Takes programs out of Debian packages without installing them."""

from pathlib import Path

from cluster.parts import DebianPart
from cluster.say import Say
from cluster.toolrun import BuildError, run


def unpack(part: DebianPart, made: Path, scratch: Path, say: Say) -> None:
    """Raises BuildError when apt-get cannot fetch a package."""
    packages = sorted({package for package, _, _ in part.files})
    say(f"{part.name}: fetching {', '.join(packages)}")
    try:
        run(["apt-get", "-q", "download", *packages], part.name, cwd=scratch)
    except BuildError:
        run(["apt-get", "-q", "update"], part.name)  # the lists are missing, or too old
        run(["apt-get", "-q", "download", *packages], part.name, cwd=scratch)
    for archive in scratch.glob("*.deb"):
        run(["dpkg-deb", "-x", str(archive), str(scratch / "root")], part.name)
    for _, inside, target in part.files:
        (scratch / "root" / inside).replace(made / target)
