"""Names, labels and annotations of what Sandlot makes in a cluster: written here, and read by everything that looks for it."""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Final

import msgspec

from sandlot.errors import BadRequest

PREFIX: Final = "sandlot.dev/"
KIND: Final = "sandlot.dev/kind"
"""`sandbox` on pods; `client` and `sandbox-lease` on Leases."""
CLIENT: Final = "sandlot.dev/client"
OWNER: Final = "sandlot.dev/owner"
SHARD: Final = "sandlot.dev/shard"
NETWORK: Final = "sandlot.dev/network"
"""`Spec.network` of the sandbox, for network policies to select by."""
CREATE: Final = "sandlot.dev/create"
"""One random word for each create: how a pod that exists already is known to be the one just asked for."""
IMAGE_NOTE: Final = "sandlot.dev/image"
LABELS_NOTE: Final = "sandlot.dev/labels"

SHARDS: Final = 8
"""Into how many collections a client's pods are divided: the server deletes the members of one collection one by one
(`--delete-collection-workers` is 1 unless set), so several at once go faster."""

_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_LABEL_NAME: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_LABEL_PREFIX: Final = re.compile(r"(?=.{1,253}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/")
_DNS_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def client_lease(client: str) -> str:
    """The Lease that says this client is alive."""
    return f"sandlot-client-{client}"


def sandbox_lease(name: str) -> str:
    """The Lease of one leased sandbox."""
    return f"sandlot-lease-{name}"


def selector(**labels: str) -> str:
    """A label selector for what bears all of these (`client`, `owner`, `kind`, `shard`)."""
    return ",".join(f"{PREFIX}{name}={value}" for name, value in labels.items())


def shard(name: str) -> str:
    """Which collection the sandbox of this name belongs to."""
    return str(zlib.crc32(name.encode()) % SHARDS)


def check_dns_label(text: str, what: str) -> str:
    """Raises BadRequest where it is none."""
    if not _DNS_LABEL.fullmatch(text):
        raise BadRequest(
            f"{what} {text!r} cannot be a name in Kubernetes", hint="use at most 63 of a-z, 0-9 and -, not - at the ends"
        )
    return text


def labels(wanted: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """A spec's labels as a pod can bear them: (labels, annotations).

    What is no label in Kubernetes is made one (other characters become `-`, what is too long is cut); then an annotation
    holds all of them exactly, for listings.

    Raises:
        BadRequest: one begins with `sandlot.dev/`, which is ours.
    """
    borne: dict[str, str] = {}
    for key, value in wanted.items():
        if key.startswith(PREFIX):
            raise BadRequest(f"the label {key!r} is one of Sandlot's own", hint=f"choose another than {PREFIX}...")
        borne[_key(key)] = value if _LABEL_VALUE.fullmatch(value) else _sane(value)
    exact = {} if borne == dict(wanted) else {LABELS_NOTE: msgspec.json.encode(dict(wanted)).decode()}
    return borne, exact


def exact_labels(borne: Mapping[str, str], annotations: Mapping[str, str]) -> dict[str, str]:
    """The spec's labels back from what a pod bears. A note that somebody spoilt is passed over."""
    note = annotations.get(LABELS_NOTE)
    if note is not None:
        try:
            return msgspec.json.decode(note, type=dict[str, str])
        except msgspec.DecodeError:
            pass
    return {key: value for key, value in borne.items() if not key.startswith(PREFIX)}


def _key(key: str) -> str:
    prefix, _, name = key.rpartition("/")
    head = f"{prefix}/" if prefix and _LABEL_PREFIX.fullmatch(f"{prefix}/") else ""
    if prefix and not head:
        name = key
    return head + (name if _LABEL_NAME.fullmatch(name) else _sane(name) or "label")


def _sane(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", text)[:63].strip("-_.")
