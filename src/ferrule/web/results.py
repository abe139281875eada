"""Takes results from outside over HTTP: `POST /results/TOKEN`, for any Starlette application.

Each answer tells the sender what to do. 200: the result is recorded, now or before. 503: send it
again in a moment. 400, 413 and 422: send another one. 404, 409 and 410: nothing more is taken here.

The token permits to deliver the result, so it must not reach a log. A server writes the path of a
request into its access log when the answer begins. By then, the token is out of the path.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from ferrule.approval.result_links import ForgedTokenError
from ferrule.encoding.stored import parse_json
from ferrule.errors import ConfigurationError, DecisionError, StoreError
from ferrule.runs.decisions import deliver_by_token
from ferrule.settings import setting
from ferrule.values.calls.secrets import STARS
from ferrule.web.guard import MOST_BODY_BYTES, PATIENCE_S
from ferrule.web.reading import is_missing

if TYPE_CHECKING:
    from collections.abc import Callable

    from ferrule.approval.result_links import ResultLinks, ResultToken
    from ferrule.runs.protocols import Store

log = logging.getLogger("ferrule.web")

_STATUSES = {"unknown": 410, "expired": 410, "decided": 409, "unfit": 422, "early": 503}
"""The status of an answer, by why a result is refused (`DecisionError.reason`)."""
# The words of the error are for people who may see the run. A sender may not.
_TEXTS = {
    "unknown": "No result is awaited here any more.",
    "expired": "The time for this result is over.",
    "decided": "Another result, or a decision about the call, was taken before.",
    "early": "The call does not wait yet. Send the result again in a moment.",
}
_AGAIN = {"retry-after": "2"}


class _Answer(Exception):  # noqa: N818  an answer, not a fault
    """A request is answered with this status and this text."""

    def __init__(self, status: int, text: str, headers: dict[str, str] | None = None) -> None:
        self.status, self.text, self.headers = status, text, headers
        super().__init__(status, text)


def route_for_results(
    store: Store, on_delivered: Callable[[str], Any] | None, path: str = "/results"
) -> Route:
    """The route. See `ferrule.result_route`."""
    links = setting("result_links")
    if links is None:
        raise ConfigurationError(
            "The route for results checks tokens with the setting `result_links`: "
            "configure(result_links=ResultLinks('https://...', secret=...)) before you make it."
        )
    return Route(path + "/{token}", _Results(store, links, on_delivered))


class _Results:
    """The application behind the route. It is one, so that it sees every method."""

    def __init__(
        self, store: Store, links: ResultLinks, on_delivered: Callable[[str], Any] | None
    ) -> None:
        self._store = store
        self._links = links
        self._on_delivered = on_delivered

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        token = scope["path_params"]["token"]
        _keep_out_of_logs(scope, token)
        request = Request(scope, receive)
        try:
            await self._take(request, token)
            response = JSONResponse({"status": "taken"})
        except _Answer as answer:
            body = {"error": answer.text}
            response = JSONResponse(body, answer.status, headers=answer.headers)
        response.headers["cache-control"] = "no-store"
        await response(scope, receive, send)

    async def _take(self, request: Request, token: str) -> None:
        if request.method != "POST":
            raise _Answer(405, "A result is posted here.", {"allow": "POST"})
        try:
            call = self._links.read(token)
        except ForgedTokenError:
            raise _Answer(404, "There is no such address.") from None
        except DecisionError as error:
            raise _refusal(error) from None
        value = _read_value(await _read_body(request), token)
        await run_in_threadpool(partial(self._deliver, call, value))
        # If this raises, the server answers 500: a sender then repeats the result, which is
        # accepted again, and so the run is continued.
        await self._continue(call.run_id)

    def _deliver(self, call: ResultToken, value: Any) -> None:
        try:
            deliver_by_token(self._store, call, value)
        except DecisionError as error:
            raise _refusal(error) from None
        except StoreError as error:
            if is_missing(error):
                raise _Answer(410, _TEXTS["unknown"]) from None
            log.error("No result was taken for the run %s: %s", call.run_id, error)
            raise _Answer(503, "Send the result again in a moment.", _AGAIN) from error

    async def _continue(self, run_id: str) -> None:
        if self._on_delivered is None:
            return
        if inspect.iscoroutinefunction(self._on_delivered):
            await self._on_delivered(run_id)
        else:
            await run_in_threadpool(self._on_delivered, run_id)


def _keep_out_of_logs(scope: Any, token: str) -> None:
    scope["path"] = scope["path"].replace(token, "hidden")
    scope["raw_path"] = scope["path"].encode("utf-8", "surrogatepass")


def _refusal(error: DecisionError) -> _Answer:
    status = _STATUSES[error.reason]
    headers = None
    if error.reason == "early":
        headers = _AGAIN
    return _Answer(status, _TEXTS.get(error.reason, str(error)), headers)


async def _read_body(request: Request) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(PATIENCE_S):
            async for chunk in request.stream():
                body += chunk
                if len(body) > MOST_BODY_BYTES:
                    raise _Answer(413, "A result is at most 1 MiB of JSON.")
    except TimeoutError:
        raise _Answer(408, "The result did not arrive in time.", {"connection": "close"}) from None
    except ClientDisconnect:
        raise _Answer(400, "The result did not arrive.") from None
    return bytes(body)


def _read_value(body: bytes, token: str) -> Any:
    """The JSON value in a body. A sender may repeat its address there: the token becomes stars."""
    try:
        return parse_json(body.decode().replace(token, STARS))
    except (ValueError, RecursionError):
        raise _Answer(400, "A result is JSON.") from None
