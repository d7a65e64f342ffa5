"""`sandlot image`: images of this machine for clusters: the daemon's own, and task images."""

from __future__ import annotations

from pathlib import Path

import click

from sandlot.cli.output import json_option, print_json, say
from sandlot.cli.publishing import show_publishing
from sandlot.cli.running import run


@click.group("image")
def command() -> None:
    """Make and push the images that pods are made from."""


@command.command("build-daemon")
@click.argument("out", metavar="OUT.tar", type=click.Path(path_type=Path, dir_okay=False))
@click.option("--tag", default="sandlot/daemon:latest", show_default=True, help="The name that importing gives it.")
@json_option
def build_daemon(out: Path, tag: str, as_json: bool) -> int:
    """Write the image that delivers the daemon as an OCI archive, for `ctr image import`, skopeo and others."""
    from sandlot.backends.kubernetes.publishing.daemon import write_daemon_archive
    from sandlot.daemon_binary import find_daemon

    digest = write_daemon_archive(find_daemon(), out, tag=tag)
    if as_json:
        print_json({"file": str(out), "tag": tag, "digest": digest})
    else:
        say(f"{out}: {tag}, {digest}")
    return 0


@command.command("push-daemon")
@click.argument("target", metavar="REGISTRY/REPOSITORY[:TAG]")
@json_option
def push_daemon(target: str, as_json: bool) -> int:
    """Push the image that delivers the daemon, and print its reference.

    A loopback registry is spoken to in plain HTTP, others by https unless the target begins with http://. Credentials are
    those of `docker login`.
    """
    run(_push(target, None, (), as_json))
    return 0


@command.command("push")
@click.argument("image", metavar="IMAGE")
@click.argument("target", metavar="REGISTRY/REPOSITORY[:TAG]")
@click.option("--layer", "layers", multiple=True, metavar="DIRECTORY", help="Laid over the image; may be given again.")
@json_option
def push(image: str, target: str, layers: tuple[str, ...], as_json: bool) -> int:
    """Push IMAGE (dir:PATH, oci:PATH[@REF], oci-archive:PATH[@REF] or a path) to a registry, and print its reference.

    `run`, `exec` and `shell` publish what they need by themselves; this is for naming an image yourself.
    """
    run(_push(target, image, layers, as_json))
    return 0


async def _push(target: str, image: str | None, layers: tuple[str, ...], as_json: bool) -> None:
    from sandlot.backends.kubernetes.publishing import Publisher
    from sandlot.backends.kubernetes.registry import Registry, parse_target
    from sandlot.backends.local.runtime import cache_dir
    from sandlot.daemon_binary import find_daemon

    place = parse_target(target)
    progress = show_publishing()
    async with Publisher(place.repository, cache_dir(), progress=progress) as publisher, Registry(place.repository) as registry:
        if image is None:
            digest = await publisher.push_daemon(registry, place.tag, find_daemon())
        else:
            digest = await publisher.push_image(registry, place.tag, image, layers)
    reference = f"{place.text}@{digest}"
    if as_json:
        print_json({"reference": reference, "tag": place.text, "digest": digest})
    else:
        print(reference)
