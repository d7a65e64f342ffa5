"""The client's registry settings, handed to pip inside a sandbox as variables: the sandbox sees nothing of the client by
itself."""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# What changes where packages come from, and how they are reached. Local folders (find-links) do not exist inside.
_SETTINGS: Final = ("index-url", "extra-index-url", "trusted-host", "proxy", "timeout", "retries")
_VARIABLES: Final = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
_CERTIFICATES: Final = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")

CERTIFICATES_INSIDE: Final = "/tmp/index-certificates.pem"


@dataclass(frozen=True, slots=True)
class Index:
    """How to reach the registry."""

    environment: Mapping[str, str]
    certificates: bytes | None = None
    """To be written to `CERTIFICATES_INSIDE`, where `environment` points; None: those of the image."""


def index_of_client(environment: Mapping[str, str] | None = None, files: tuple[Path, ...] | None = None) -> Index:
    """From pip's configuration files and variables, the variables first, as pip itself has it."""
    environment = os.environ if environment is None else environment
    found = _from_files(_config_files(environment) if files is None else files)
    for name in (*_SETTINGS, "cert"):
        value = environment.get(f"PIP_{name.upper().replace('-', '_')}")
        if value:
            found[name] = value
    inside = {f"PIP_{name.upper().replace('-', '_')}": found[name] for name in _SETTINGS if name in found}
    inside |= {name: environment[name] for name in _VARIABLES if name in environment}
    bundle = found.get("cert") or next((environment[name] for name in _CERTIFICATES if environment.get(name)), None)
    certificates = _read(bundle)
    if certificates is not None:
        inside |= dict.fromkeys(_CERTIFICATES, CERTIFICATES_INSIDE)
    # The second release's build tools are those of the first, most often: pip's cache inside spares fetching them again.
    inside |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_CACHE_DIR": "/tmp/pip-cache"}
    return Index(inside, certificates)


def _config_files(environment: Mapping[str, str]) -> tuple[Path, ...]:
    """Where pip looks, in its order of growing weight."""
    home = Path(environment.get("HOME", "/"))
    config = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    named = environment.get("PIP_CONFIG_FILE")
    places = [Path("/etc/pip.conf"), home / ".pip/pip.conf", config / "pip/pip.conf", Path(sys.prefix) / "pip.conf"]
    return (*places, Path(named)) if named else tuple(places)


def _from_files(files: tuple[Path, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeError):
            continue  # pip itself will say so; here it only means that nothing is handed on
        for section in ("global", "download", "install"):
            if parser.has_section(section):
                found |= {name: value.strip() for name, value in parser.items(section) if name in (*_SETTINGS, "cert")}
    return found


def _read(bundle: str | None) -> bytes | None:
    if not bundle:
        return None
    try:
        return Path(bundle).read_bytes()
    except OSError:
        return None
