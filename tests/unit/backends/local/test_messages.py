"""What a `Spec` becomes on the wire."""

from __future__ import annotations

from pathlib import Path

from sandlot.backends.base import Grant
from sandlot.backends.local import messages
from sandlot.backends.local.images.store import Image
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.spec import Spec

LAYERED = Image("layers", (Path("/c/1"), Path("/c/2")), env=("PATH=/opt/bin", "A=1", "B=x=y"), workdir="/app", user="7")


def environment(image: Image, **env: str) -> dict[bytes, bytes]:
    entries = messages.environment(image, Spec(env=env))
    return dict(entry.split(b"=", 1) for entry in entries)


def test_the_environment_is_the_images_then_the_callers() -> None:
    """A PATH is there in any case; values keep their equals signs; nothing of this process's is in it."""
    assert environment(LAYERED, A="2") == {b"PATH": b"/opt/bin", b"A": b"2", b"B": b"x=y"}
    assert environment(Image("host")) == {b"PATH": messages.DEFAULT_PATH.encode()}


def test_layers_of_the_spec_lie_over_those_of_the_image() -> None:
    """Lowest first; over the machine's own system too."""
    over = Spec(image="oci:/x", layers=("/top",))
    made = messages.create(1, "n", over, Grant(), LAYERED)
    assert made.image == r.Image(kind="layers", layers=(b"/c/1", b"/c/2", b"/top"))
    made = messages.create(1, "n", Spec(layers=("/top",)), Grant(), Image("host"))
    assert made.image == r.Image(kind="host", layers=(b"/top",))


def test_what_the_spec_leaves_open_is_the_images() -> None:
    """Work folder and user; the root directory and the daemon's default where the image says nothing either."""
    made = messages.create(1, "n", Spec(), Grant(), LAYERED)
    assert (made.workdir, made.user) == (b"/app", "7")
    made = messages.create(1, "n", Spec(workdir="/w", user=0), Grant(), LAYERED)
    assert (made.workdir, made.user) == (b"/w", "0")
    made = messages.create(1, "n", Spec(), Grant(), Image("host"))
    assert (made.workdir, made.user) == (b"/", None)


def test_units_are_the_wires() -> None:
    """Bytes, thousandths of a processor, milliseconds."""
    spec = Spec(cpu=1.5, memory="512MiB", disk="2GiB", pids=9, upper="disk")
    made = messages.create(1, "n", spec, Grant("leased", lease_s=1.5, idle_timeout_s=2, max_lifetime_s=3), Image("host"))
    assert made.limits == r.Limits(memory_bytes=512 * 2**20, cpu_millis=1500, pids=9)
    assert made.upper == r.Upper(kind="disk", size_bytes=2**31)
    assert (made.owner, made.lease_ms, made.idle_timeout_ms, made.max_lifetime_ms) == ("leased", 1500, 2000, 3000)
    assert made.shm_bytes == 256 * 2**20


def test_a_listing_shows_the_callers_reference_and_labels() -> None:
    """The host knows only directories, so the reference travels as a label of ours and is shown as what it is."""
    made = messages.create(1, "n", Spec(image="oci:/x@v1", labels={"run": "r1"}), Grant(), LAYERED)
    row = a.SandboxRow(name="n", owner="leased", created_ms=1500, lease_left_ms=2500, labels=made.labels, image="layers:/c/2")
    info = messages.info(row)
    assert (info.image, dict(info.labels)) == ("oci:/x@v1", {"run": "r1"})
    assert (info.owner, info.created_s, info.lease_left_s) == ("leased", 1.5, 2.5)
