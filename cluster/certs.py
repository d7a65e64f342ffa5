"""The cluster's own certificate authority and what it signs, made with the openssl command."""

import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from cluster.layout import REAL_NODE, Layout

_DAYS = "3650"


@dataclass(frozen=True)
class _Certificate:
    name: str
    subject: str
    usage: str
    alternatives: str = ""


def _wanted(layout: Layout) -> list[_Certificate]:
    names = "DNS:localhost,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc"
    addresses = f"IP:127.0.0.1,IP:{layout.gateway},IP:{layout.services[1]}"
    return [
        _Certificate("apiserver", "/CN=kube-apiserver", "serverAuth", f"{names},{addresses}"),
        _Certificate("apiserver-kubelet", "/O=system:masters/CN=kube-apiserver-kubelet-client", "clientAuth"),
        _Certificate("kubelet-serving", f"/O=system:nodes/CN=system:node:{REAL_NODE}", "serverAuth",
                     f"DNS:{REAL_NODE},IP:127.0.0.1,IP:{layout.gateway}"),
        _Certificate("kubelet", f"/O=system:nodes/CN=system:node:{REAL_NODE}", "clientAuth"),
        _Certificate("controller-manager", "/CN=system:kube-controller-manager", "clientAuth"),
        _Certificate("scheduler", "/CN=system:kube-scheduler", "clientAuth"),
        _Certificate("admin", "/O=system:masters/CN=admin", "clientAuth"),
    ]  # fmt: skip


def write(layout: Layout) -> None:
    """Make everything in `layout.pki`.

    Raises:
        subprocess.CalledProcessError: openssl refused.
    """
    pki = layout.pki
    pki.mkdir(mode=0o700, exist_ok=True)
    _openssl(pki, "req", "-x509", *_key("ca"), "-out", "ca.crt", "-days", _DAYS, "-subj", "/CN=sandlot-test-ca",
             "-addext", "keyUsage=critical,keyCertSign,cRLSign")  # fmt: skip
    _openssl(pki, "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "service-account.key")
    _openssl(pki, "pkey", "-in", "service-account.key", "-pubout", "-out", "service-account.pub")
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(_sign, pki, one) for one in _wanted(layout)]:
            done.result()


def _key(name: str) -> list[str]:
    return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{name}.key"]


def _sign(pki: Path, wanted: _Certificate) -> None:
    extensions = [
        "basicConstraints=critical,CA:FALSE",
        "keyUsage=critical,digitalSignature",
        f"extendedKeyUsage={wanted.usage}",
    ]
    if wanted.alternatives:
        extensions.append(f"subjectAltName={wanted.alternatives}")
    _openssl(pki, "req", "-x509", "-CA", "ca.crt", "-CAkey", "ca.key", *_key(wanted.name), "-out", f"{wanted.name}.crt",
             "-days", _DAYS, "-subj", wanted.subject, *(word for one in extensions for word in ("-addext", one)))  # fmt: skip


def _openssl(pki: Path, *words: str) -> None:
    subprocess.run(["openssl", *words], cwd=pki, check=True, capture_output=True)
