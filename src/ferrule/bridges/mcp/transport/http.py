"""MCP over HTTP: the client under the SDK's transports, which loses nothing and never brings the connection down.

The SDK turns every status into one text, and a refused connection into the cancellation of whoever waits. So what it is given here is a
client that looks like httpx2's and answers in its place: each JSON-RPC request that failed leaves a `Note` under its id (status,
`Retry-After`, whether it was sent at all), and the SDK gets a response that it handles well.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import time
from typing import TYPE_CHECKING, Any, Self, cast

from ferrule.bridges.mcp.transport.messages import LARGEST, Note, excerpt, heard
from ferrule.bridges.mcp.transport.sse import EVENTS, heard_events, said_by
from ferrule.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping

CONNECT_S = 30.0
_EXCERPT = 300
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "[::1]")


class GuardedClient:
    """An `httpx2.AsyncClient` as far as the SDK's transports use one, which notes failures of JSON-RPC requests instead of raising them.

    With `answers_apart` (the older HTTP+SSE, where answers come on another stream and the transport dies of a failed POST) it reports them
    to `failed` and says 202.
    """

    def __init__(self, client: Any, *, answers_apart: bool = False) -> None:
        self._client = client
        self.answers_apart = answers_apart
        self.notes: dict[Any, Note] = {}
        self.last: Note | None = None
        self.failed: Callable[[Any], None] | None = None
        self.waits_for: Callable[[Any], bool] | None = None
        """Whether a request with this id is under way."""
        self.max_redirects: int = client.max_redirects

    def build_request(self, *args: Any, **keywords: Any) -> Any:
        """httpx2's own."""
        return self._client.build_request(*args, **keywords)

    async def send(self, request: Any, **keywords: Any) -> Any:
        """Send it; failures of a JSON-RPC message become a response."""
        import httpx2

        await request.aread()  # of a redirect that is followed, the body is a stream
        ours, asked = _rpc_of(request)
        if asked is not None:
            self.notes.pop(asked, None)  # of the redirect
            self.last = None
        try:
            response = await self._client.send(request, **keywords)
            if ours:
                response = await self._look(asked, response)
            elif request.method == "GET" and _kind(response).startswith(EVENTS):
                response = heard_events(response, self, None)
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            if not ours:
                raise
            unsent = isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.PoolTimeout | httpx2.UnsupportedProtocol)
            return self._instead(request, asked, Note(was_sent=not unsent, text=said_by(error), cause=error))
        if ours and self.answers_apart and not response.is_success and not response.is_redirect:
            await response.aclose()
            return self._instead(request, asked, self.notes.get(asked))
        return response

    async def _look(self, asked: Any, response: Any) -> Any:
        """The response that the SDK may read; a note where it holds no answer."""
        kind = _kind(response)
        if response.is_success and kind.startswith(EVENTS):
            return heard_events(response, self, asked)
        is_accepted = response.status_code == 202  # noqa: PLR2004  accepted: nothing to read
        if not response.is_redirect and not is_accepted:
            await response.aread()  # a body that breaks off is noticed here, and not where it would end the transport
        if asked is None or (self.answers_apart and response.is_success):
            return response
        if kind.startswith("application/json") and not response.is_redirect and not is_accepted:
            return self._look_at_json(asked, response)
        text = response.text[:_EXCERPT] if response.is_closed and not response.is_success else ""
        if response.is_success:
            text = "accepted, and no answer" if is_accepted else f"content type {kind or 'unknown'}"
        elif response.next_request is not None:
            text = f"a redirect to {response.next_request.url.copy_with(userinfo=b'', query=None, fragment=None)}"
        self._note_status(asked, response, text)
        return response

    def _look_at_json(self, asked: Any, response: Any) -> Any:
        from mcp_types import JSONRPCError, JSONRPCResponse

        found = heard(response.content)
        message = found.message
        is_error = isinstance(message, JSONRPCError) and not found.broken
        if response.is_success and (is_error or (isinstance(message, JSONRPCResponse))) and message.id in {asked, str(asked), None}:
            message.id = asked  # of an error, it may be null
            return _with_content(response, message.model_dump_json(by_alias=True, exclude_unset=True).encode())
        if response.is_success:
            self._note_status(asked, response, found.broken or f"what is no answer to it: {excerpt(response.content)}")
            return _with_content(response, b"")
        self._note_status(asked, response, "" if is_error else excerpt(response.content), has_error=is_error)
        return response

    def _note_status(self, asked: Any, response: Any, text: str, *, has_error: bool = False) -> None:
        after = _retry_after(response.headers.get("retry-after"))
        note = Note(status=response.status_code, retry_after_s=after, text=text, was_answered=response.is_success, has_error=has_error)
        self.note(asked, note)

    def _instead(self, request: Any, asked: Any, note: Note | None) -> Any:
        import httpx2

        if asked is not None and note is not None:
            self.note(asked, note)
            if self.failed is not None:
                self.failed(asked)
        return httpx2.Response(202 if self.answers_apart else 503, request=request)

    def note(self, asked: Any, note: Note) -> None:
        """Keep what became of a request."""
        self.notes[asked] = self.last = note

    def answered(self, asked: Any) -> None:
        """Its answer came after all."""
        self.notes.pop(asked, None)

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(*error)


def _rpc_of(request: Any) -> tuple[bool, Any]:
    """Whether a request carries a JSON-RPC message, and the id it waits for (None for a notification). An OAuth flow's do not."""
    if request.method != "POST" or not request.headers.get("content-type", "").startswith("application/json"):
        return False, None
    try:
        found = json.loads(request.content)
    except ValueError:
        return False, None
    if not isinstance(found, dict) or "jsonrpc" not in found:
        return False, None
    body = cast("dict[str, Any]", found)
    return True, body.get("id") if "method" in body else None


def _kind(response: Any) -> str:
    return response.headers.get("content-type", "").lower()


def _with_content(response: Any, content: bytes) -> Any:
    """The same response, read, with another body."""
    import httpx2

    kind = {"content-type": "application/json"}
    session = response.headers.get("mcp-session-id")
    headers = kind if session is None else {**kind, "mcp-session-id": session}
    return httpx2.Response(response.status_code, headers=headers, content=content, request=response.request)


def _retry_after(text: str | None) -> float | None:
    """Seconds, from either form of the header (RFC 9110, 10.2.3)."""
    if not text:
        return None
    with contextlib.suppress(ValueError):
        return max(0.0, float(text))
    with contextlib.suppress(ValueError, TypeError):
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    return None


def refuse_plain_http(url: str, name: str, *, allowed: bool) -> None:
    """Raises `ConfigurationError` for an address that is neither https nor this machine, unless it was allowed."""
    from urllib.parse import urlsplit

    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        msg = f"The address of MCP server `{name}` must be a http(s) URL."
        raise ConfigurationError(msg)
    if parts.scheme == "http" and parts.hostname not in _LOOPBACK and not allowed:
        msg = (
            f"MCP server `{name}` is asked for over plain http at {parts.hostname}: what is sent, tokens too, could be read on the way. "
            "Use https, or say `allow_http=True` where the network is trusted."
        )
        raise ConfigurationError(msg)


def _new_client(headers: Mapping[str, str], auth: Any) -> Any:
    import httpx2

    # No read timeout: every request has a deadline of its own, and a stream of notifications may be silent for hours.
    return httpx2.AsyncClient(headers=dict(headers), auth=auth, timeout=httpx2.Timeout(CONNECT_S, read=None))


@contextlib.asynccontextmanager
async def http_streams(
    url: str, headers: Mapping[str, str], auth: Any, given: Any, noted: Callable[[GuardedClient], None]
) -> AsyncGenerator[tuple[Any, Any]]:
    """Streamable HTTP. A client that was `given` stays its owner's to close; headers and auth are then its own, too."""
    from mcp.client.streamable_http import streamable_http_client

    async with contextlib.AsyncExitStack() as stack:
        client = given if given is not None else await stack.enter_async_context(_new_client(headers, auth))
        guarded = GuardedClient(client)
        noted(guarded)
        streams = streamable_http_client(url, http_client=cast("Any", guarded), max_sse_event_size=LARGEST)
        yield await stack.enter_async_context(streams)


@contextlib.asynccontextmanager
async def sse_streams(
    url: str, headers: Mapping[str, str], auth: Any, noted: Callable[[GuardedClient], None]
) -> AsyncGenerator[tuple[Any, Any]]:
    """The older HTTP+SSE of revision 2024-11-05."""
    from mcp.client.sse import sse_client

    def make(**_: Any) -> Any:
        guarded = GuardedClient(_new_client(headers, auth), answers_apart=True)
        noted(guarded)
        return guarded

    async with sse_client(url, httpx_client_factory=cast("Any", make)) as streams:
        yield streams
