"""Who this client is to which API server. kubernetes_asyncio reads all of it: kubeconfig, exec plugins, in-cluster tokens.

Only its configuration loader is used, never its client or its models.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from sandlot.errors import Unsupported

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

IN_CLUSTER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where every pod with a token finds it (kubernetes.io/docs/tasks/run-application/access-api-from-pod)."""
HOME_CONFIG: Final = "~/.kube/config"
INSTALL_HINT: Final = "pip install 'sandlot[kubernetes]'"


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a request needs. Secrets are never shown."""

    server: str
    """URL of the API server, without a slash at its end."""
    namespace: str
    """The namespace that the configuration names, else `default`."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    """None: plain HTTP."""
    server_name: str | None = None
    """The name in the server's certificate, where it is not the one in its URL."""
    proxy: str | None = field(default=None, repr=False)
    in_cluster: bool = False


Load = Callable[[], Awaitable[Credentials]]
"""Reads the credentials anew: when they were refused, since tokens end."""


def credentials(kubeconfig: str | Path | None = None, context: str | None = None) -> Load:
    """How to come by the credentials: from `kubeconfig`, else `KUBECONFIG`, else `~/.kube/config`, else those of the pod.

    Raises (when they are read):
        Unsupported: there are none, they cannot be read, or the `kubernetes` extra is not installed.
    """

    async def load() -> Credentials:
        path = kubeconfig if kubeconfig is not None else _config_path()
        if path is not None:
            return await _from_kubeconfig(str(path), context)
        if "KUBERNETES_SERVICE_HOST" in os.environ:
            return await _from_pod()
        raise Unsupported(
            "there is no kubeconfig and this is no pod", hint="set KUBECONFIG, say kubeconfig=PATH, or start `make cluster-up`"
        )

    return load


def _config_path() -> str | None:
    named = os.environ.get("KUBECONFIG")
    if named:
        return named
    home = os.path.expanduser(HOME_CONFIG)
    return home if os.path.exists(home) else None


def _configuration() -> Configuration:
    try:
        from kubernetes_asyncio.client import Configuration
    except ImportError as error:
        raise Unsupported("Kubernetes needs packages that are not installed", hint=INSTALL_HINT) from error
    return Configuration()


def _require_file(path: str) -> None:
    """KUBECONFIG may name several; of a missing one the library says what is hard to understand, and prints it."""
    if not any(os.path.exists(one) for one in path.split(os.pathsep)):
        raise Unsupported(f"there is no kubeconfig {path}", hint="check --kubeconfig and KUBECONFIG")


async def _from_kubeconfig(path: str, context: str | None) -> Credentials:
    _require_file(path)
    configuration = _configuration()
    from kubernetes_asyncio.config import load_kube_config

    try:
        # Made anew each time, so that a plugin runs again for a token that was refused before its time.
        loader = await load_kube_config(path, context, client_configuration=configuration)
    except Exception as error:  # whatever a broken file or a plugin causes, its text is all there is to know
        raise Unsupported(
            f"the kubeconfig {path} cannot be used: {_why(error)}", hint="try `kubectl version` with it"
        ) from error
    namespace = ((loader.current_context or {}).get("context") or {}).get("namespace") or "default"
    return await _ready(configuration, namespace, in_cluster=False)


def _why(error: Exception) -> str:
    """Of what is no kubeconfig at all the library says only where it stumbled."""
    if isinstance(error, UnicodeDecodeError):
        return "it is no text"
    if isinstance(error, (TypeError, KeyError, AttributeError, IndexError)):
        return "it is not of a kubeconfig's form, YAML with clusters, users and contexts"
    return str(error)


async def _from_pod() -> Credentials:
    configuration = _configuration()
    from kubernetes_asyncio.config import ConfigException, load_incluster_config

    try:
        load_incluster_config(client_configuration=configuration)  # type: ignore[no-untyped-call]
        namespace = (IN_CLUSTER / "namespace").read_text().strip()
    except (ConfigException, OSError) as error:
        message = f"this pod has no usable service account: {error}"
        raise Unsupported(message, hint="give the pod a service account and let its token be mounted") from error
    return await _ready(configuration, namespace, in_cluster=True)


async def _ready(configuration: Configuration, namespace: str, *, in_cluster: bool) -> Credentials:
    """From the library's values to ours."""
    server = (configuration.host or "").rstrip("/")
    token = await configuration.get_api_key_with_prefix("BearerToken")
    return Credentials(
        server=server,
        namespace=namespace,
        headers={"Authorization": token} if token else {},
        tls=_tls(configuration) if server.startswith("https") else None,
        server_name=configuration.tls_server_name or None,
        proxy=configuration.proxy or _proxy(server),
        in_cluster=in_cluster,
    )


def _tls(configuration: Configuration) -> ssl.SSLContext:
    try:
        tls = ssl.create_default_context(cafile=configuration.ssl_ca_cert or None)
        # Clusters made by older tools have authorities without the extensions that strict checking asks for since 3.13.
        tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if configuration.cert_file:
            tls.load_cert_chain(configuration.cert_file, configuration.key_file)
    except (OSError, ssl.SSLError) as error:
        raise Unsupported(f"the cluster's certificates cannot be used: {error}", hint="write the kubeconfig anew") from error
    if not configuration.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls


def _proxy(server: str) -> str | None:
    """The environment's proxy for this server. As in other clients of Kubernetes, what is on this machine needs none."""
    parts = urlsplit(server)
    host = parts.hostname or ""
    if host == "localhost" or _is_loopback(host) or proxy_bypass(host):
        return None
    return getproxies().get(parts.scheme)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
