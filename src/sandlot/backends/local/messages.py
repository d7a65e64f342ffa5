"""Between the values of Python callers and the messages of a host."""

from __future__ import annotations

import os

from sandlot.backends.base import Grant, SandboxInfo
from sandlot.backends.local.images.store import Image
from sandlot.protocol import answers as a
from sandlot.protocol import requests as r
from sandlot.spec import Spec

DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""For images that name no PATH, as container engines do it."""
_IMAGE_LABEL = "sandlot.image"
"""Carries the caller's image reference through the host, which knows only directories."""


def create(id: int, name: str, spec: Spec, grant: Grant, image: Image) -> r.Create:
    """The request that makes `spec` from an image that lies ready."""
    return r.Create(
        id=id,
        name=name,
        image=_mounted(spec, image),
        upper=r.Upper(kind=spec.upper, size_bytes=spec.disk_bytes),
        env=environment(image, spec),
        workdir=os.fsencode(spec.workdir or image.workdir or "/"),
        user=_user(spec, image),
        hostname=spec.hostname,
        network=spec.network,
        limits=r.Limits(
            memory_bytes=spec.memory_bytes, cpu_millis=None if spec.cpu is None else round(spec.cpu * 1000), pids=spec.pids
        ),
        limits_mode=spec.limits,
        shm_bytes=spec.shm_bytes,
        read_only=spec.read_only,
        owner=grant.owner,
        lease_ms=_ms(grant.lease_s),
        idle_timeout_ms=_ms(grant.idle_timeout_s),
        max_lifetime_ms=_ms(grant.max_lifetime_s),
        labels=dict(spec.labels) | {_IMAGE_LABEL: spec.image},
    )


def _mounted(spec: Spec, image: Image) -> r.Image:
    over = [os.fsencode(os.path.abspath(path)) for path in spec.layers]
    if image.kind == "host":
        return r.Image(kind="host", layers=tuple(over) or None)
    return r.Image(kind="layers", layers=(*(os.fsencode(path) for path in image.layers), *over))


def environment(image: Image, spec: Spec) -> tuple[bytes, ...]:
    """The image's own entries, then the caller's over them; never this process's."""
    merged = {"PATH": DEFAULT_PATH}
    for entry in image.env:
        key, _, value = entry.partition("=")
        merged[key] = value
    merged |= spec.env
    return tuple(os.fsencode(f"{key}={value}") for key, value in merged.items())


def _user(spec: Spec, image: Image) -> str | None:
    if spec.user is not None:
        return str(spec.user)
    return image.user or None


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)


def info(row: a.SandboxRow) -> SandboxInfo:
    """One line of a listing."""
    return SandboxInfo(
        name=row.name,
        owner="leased" if row.owner == "leased" else "attached",
        state="running",
        created_s=row.created_ms / 1000,
        image=row.labels.get(_IMAGE_LABEL, row.image),
        lease_left_s=None if row.lease_left_ms is None else row.lease_left_ms / 1000,
        labels={key: value for key, value in row.labels.items() if key != _IMAGE_LABEL},
    )
