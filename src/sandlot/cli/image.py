"""`sandlot image`: images of this machine for clusters: the daemon's own, and task images."""

from __future__ import annotations

from pathlib import Path

import click

from sandlot.cli.grouping import Verbs
from sandlot.cli.kubernetes import Where, look_options
from sandlot.cli.notices import show_notices
from sandlot.cli.output import json_option, print_json, say
from sandlot.cli.publishing import show_publishing
from sandlot.cli.running import run
from sandlot.errors import BadRequest


@click.group("image", cls=Verbs)
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


@command.command("build")
@click.argument("directory", metavar="DIRECTORY", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("out", metavar="OUT.tar", type=click.Path(path_type=Path, dir_okay=False))
@click.option("-e", "--env", multiple=True, metavar="KEY=VALUE", help="Of all that runs in it.")
@click.option("-w", "--cwd", help="The working directory.")
@click.option("-u", "--user", help="Whom commands run as.  [default: root]")
@click.option("--tag", default="sandlot/image:latest", show_default=True, help="The name that importing gives it.")
@json_option
def build(directory: Path, out: Path, env: tuple[str, ...], cwd: str | None, user: str | None, tag: str, as_json: bool) -> int:
    """Write an OCI archive with DIRECTORY as its root: an image without a container engine, such as of a debootstrap."""
    from sandlot.backends.kubernetes.publishing.archives import write_directory_archive
    from sandlot.backends.kubernetes.publishing.packing import Packer
    from sandlot.backends.local.runtime import cache_dir

    said = {"Env": list(env), "WorkingDir": cwd, "User": user}
    packer = Packer(cache_dir() / "published")
    digest = write_directory_archive(directory, out, packer, run={key: one for key, one in said.items() if one}, tag=tag)
    if as_json:
        print_json({"file": str(out), "tag": tag, "digest": digest})
    else:
        say(f"{out}: {tag}, {digest}")
    return 0


@command.command("push-daemon")
@click.argument("target", metavar="[REGISTRY/REPOSITORY[:TAG]]", required=False)
@look_options
@json_option
def push_daemon(where: Where, target: str | None, as_json: bool) -> int:
    """Push the image that delivers the daemon, and print its reference for --daemon-image.

    Without a target it goes to the registry that the cluster advertises (with -k and the options that say which cluster). A
    loopback registry is spoken to in plain HTTP, others by https unless the target begins with http://. Credentials are
    those of `docker login`.
    """
    if target is None:
        reference = run(_publish_daemon(where))
        if as_json:
            print_json({"reference": reference, "digest": reference.rpartition("@")[2]})
        else:
            print(reference)
        return 0
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


async def _publish_daemon(where: Where) -> str:
    from sandlot.backends.kubernetes.images import PublishedImages
    from sandlot.backends.local.runtime import cache_dir

    if not where.kubernetes:
        raise BadRequest("say where to push to, or -k for the registry that the cluster advertises")
    images = PublishedImages(None, cache_dir(), show_publishing(), notice=show_notices())
    async with where.api() as (api, _namespace):
        await images.start(api)
        try:
            return await images.daemon()
        finally:
            await images.aclose()


async def _push(target: str, image: str | None, layers: tuple[str, ...], as_json: bool) -> None:
    from sandlot.backends.kubernetes.publishing import Publisher
    from sandlot.backends.kubernetes.registry import Registry, parse_target
    from sandlot.backends.local.runtime import cache_dir
    from sandlot.daemon_binary import find_daemon

    place = parse_target(target)
    notice = show_notices()
    async with (
        Publisher(place.repository, cache_dir(), progress=show_publishing(), notice=notice) as publisher,
        Registry(place.repository, notice=notice) as registry,
    ):
        if image is None:
            digest = await publisher.push_daemon(registry, place.tag, find_daemon())
        else:
            digest = await publisher.push_image(registry, place.tag, image, layers)
    reference = f"{place.text}@{digest}"
    if as_json:
        print_json({"reference": reference, "tag": place.text, "digest": digest})
    else:
        print(reference)
