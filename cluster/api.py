"""A small client of the Kubernetes API with a client certificate: what setting up and looking at a cluster needs."""

import http.client
import json
import ssl
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

_IDLE_S = 30.0  # the server closes what has been idle for some 90 s, and a request may cross that


class ApiError(Exception):
    """The API server answered with something else than success."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Api:
    """One connection, for one thread; opened again when the server has closed it.

    Raises, from every call:
        ApiError: the server refused.
        OSError, http.client.HTTPException: it cannot be reached, or left in mid-answer.
    """

    def __init__(self, server: str, pki: Path, who: str = "admin", *, timeout_s: float = 30.0) -> None:
        context = ssl.create_default_context(cafile=str(pki / "ca.crt"))
        context.load_cert_chain(pki / f"{who}.crt", pki / f"{who}.key")
        parts = urlsplit(server)
        self._connection = http.client.HTTPSConnection(parts.hostname or "", parts.port, timeout=timeout_s, context=context)
        self._used_s = time.monotonic()

    def __enter__(self) -> "Api":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._connection.close()

    def get(self, path: str) -> Any:
        return json.loads(self.call("GET", path))

    def text(self, path: str) -> str:
        return self.call("GET", path).decode(errors="replace")

    def post(self, path: str, value: Mapping[str, Any]) -> Any:
        return json.loads(self.call("POST", path, value))

    def delete(self, path: str, options: Mapping[str, Any] | None = None) -> Any:
        return json.loads(self.call("DELETE", path, options))

    def ensure(self, path: str, value: Mapping[str, Any]) -> None:
        """Create it unless it is there."""
        try:
            self.post(path, value)
        except ApiError as error:
            if error.status != http.HTTPStatus.CONFLICT:
                raise

    def exists(self, path: str) -> bool:
        try:
            self.get(path)
        except ApiError as error:
            if error.status != http.HTTPStatus.NOT_FOUND:
                raise
            return False
        return True

    def call(self, method: str, path: str, value: Mapping[str, Any] | None = None) -> bytes:
        """The body of the answer."""
        body = None if value is None else json.dumps(value)
        if time.monotonic() - self._used_s > _IDLE_S:
            self._connection.close()
        try:
            self._connection.request(method, path, body, {"Content-Type": "application/json"})
            answer = self._connection.getresponse()
            content = answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()  # half an exchange must not be taken for the next one's
            raise
        self._used_s = time.monotonic()
        if answer.status >= http.HTTPStatus.BAD_REQUEST:
            raise ApiError(answer.status, _message(content))
        return content


def _message(content: bytes) -> str:
    try:
        return str(json.loads(content)["message"])
    except (ValueError, KeyError, TypeError):
        return content[:500].decode(errors="replace")
