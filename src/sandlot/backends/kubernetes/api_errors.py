"""What the API server's refusals mean, in terms of the one tree of errors.

Each class below is an `ApiError`, which tells the HTTP status, and also the class of `sandlot.errors` that says whose
fault it is and whether to try again. So nothing has to translate, and what nobody catches is typed all the same.
"""

from __future__ import annotations

from typing import Final

import aiohttp

from sandlot.backends.kubernetes.objects import Status
from sandlot.errors import BadRequest, Capacity, Denied, Infrastructure, SandlotError, Throttled, TransportLost

SHOWN_CHARS: Final = 1024


class ApiError(SandlotError):
    """The API server did not do what was asked. `status` is the HTTP status, 0 when there was no answer."""

    status: int = 0
    reason: str = ""
    """Kubernetes' own word, such as `AlreadyExists`."""
    retry_after_s: float | None = None


class ApiThrottled(ApiError, Throttled):
    """429: too many requests; nothing was done."""


class ApiUnavailable(ApiError, Infrastructure):
    """5xx: whether it was done is not known."""


class ApiUnreachable(ApiError, TransportLost):
    """No answer: whether it was done is not known."""


class ApiConflict(ApiError, Infrastructure):
    """409: the object, or the namespace's quota, was changed by somebody else just then; nothing was done."""


class ApiExpired(ApiError, Infrastructure):
    """410: the resource version is too old to go on from; list again."""


class ApiFull(ApiError, Capacity):
    """403 by a quota of the namespace; nothing was done."""


class ApiExists(ApiError, BadRequest):
    """409: there is an object of that name."""


class ApiNotFound(ApiError, BadRequest):
    """404: there is no such object, namespace or kind."""


class ApiInvalid(ApiError, BadRequest):
    """400, 422 and what else says that the request can never work."""


class ApiDenied(ApiError, Denied):
    """401, 403: these credentials may not do that, or a policy of the cluster forbids it."""


def unreachable(server: str, error: BaseException) -> ApiUnreachable:
    """There was no answer."""
    if isinstance(error, aiohttp.ClientConnectorError):
        error = error.os_error  # its own words show objects of Python's
    text = str(error) or type(error).__name__
    return ApiUnreachable(f"the API server {server} did not answer: {text}"[:SHOWN_CHARS], hint="is it up, and is the network?")


def refused(doing: str, status: int, said: Status, retry_after: str | None) -> ApiError:
    """The error for an answer that is none of success. `doing`: method and path; `retry_after`: the header."""
    kind, hint = _kind(status, said)
    text = said.message or said.reason or f"HTTP status {status}"
    error = kind(f"{doing}: {text}"[:SHOWN_CHARS], hint=hint)
    error.status, error.reason = status, said.reason or ""
    error.retry_after_s = _seconds(retry_after, said)
    return error


def _kind(status: int, said: Status) -> tuple[type[ApiError], str]:
    message = said.message or ""
    if status == 429:
        return ApiThrottled, ""
    if status >= 500 or status == 408:
        return ApiUnavailable, ""
    if status == 410 or said.reason == "Expired":
        return ApiExpired, ""
    if status == 409:
        return (ApiExists, "") if said.reason == "AlreadyExists" else (ApiConflict, "")
    if status == 404:
        return ApiNotFound, "is the namespace there?"
    if status == 403 and ("exceeded quota" in message or "limited to" in message):
        return ApiFull, "the namespace's resource quota is used up"
    if status in (401, 403):
        return ApiDenied, _denied_hint(message)
    return ApiInvalid, ""


def _denied_hint(message: str) -> str:
    if "PodSecurity" in message:
        return 'ask for PodOptions(security="restricted"), or label the namespace for what the sandboxes need'
    if "admission webhook" in message or "ValidatingAdmissionPolicy" in message:
        return "a policy of the cluster forbids it: leave the sandboxes' namespace out of it"
    if "being terminated" in message:
        return "the namespace is being deleted: use another"
    return "`sandlot manifests` prints the rights that are needed"


def _seconds(header: str | None, said: Status) -> float | None:
    if header is not None and header.strip().isdecimal():
        return float(header)
    seconds = said.details.retry_after_seconds if said.details is not None else None
    return float(seconds) if seconds else None
