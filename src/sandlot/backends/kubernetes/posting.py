"""Making one pod: asked for until it is known whether it was made."""

from __future__ import annotations

from typing import Final

from sandlot.backends.kubernetes import naming
from sandlot.backends.kubernetes.api import Api
from sandlot.backends.kubernetes.api_errors import ApiError, ApiExists, ApiThrottled, ApiUnavailable, ApiUnreachable
from sandlot.backends.kubernetes.deleting import get_pod
from sandlot.backends.kubernetes.listing import pods_path
from sandlot.backends.kubernetes.objects import Named
from sandlot.backends.kubernetes.pods import PodRequest
from sandlot.backends.kubernetes.retrying import insist

POST_S: Final = 30.0  # how long a create that may or may not have been done is asked for again


async def post_pod(api: Api, namespace: str, request: PodRequest, body: bytes) -> None:
    """Make the pod. Asked for again where the answer was lost: what exists then with our mark is what we made.

    Once it is not known whether it was made, every later refusal is told as not known too, so that it is looked for.
    """
    path = pods_path(namespace)
    doubt: ApiError | None = None

    async def ask() -> None:
        nonlocal doubt
        try:
            await api.post(path, body, Named, query={"fieldValidation": "Strict"})
        except ApiExists:
            pod = await get_pod(api, namespace, request.name)
            if pod is None or pod.metadata.labels.get(naming.CREATE) != request.mark:
                raise
        except (ApiUnavailable, ApiUnreachable) as error:
            doubt = error
            raise
        except ApiThrottled as error:
            if doubt is None:
                raise _Stop(error) from error
            raise

    try:
        await insist(ask, within_s=POST_S)
    except _Stop as stop:
        raise stop.error from stop
    except ApiError as error:
        if doubt is not None and error is not doubt:
            raise doubt from error
        raise


class _Stop(Exception):
    """Carries an error that is not to be asked through."""

    def __init__(self, error: ApiError) -> None:
        super().__init__(str(error))
        self.error = error
