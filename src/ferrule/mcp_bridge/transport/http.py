"""MCP over HTTP: the client that the SDK's transports use.

The SDK reduces every status to one text, and a refused connection to a cancellation of the waiting
task. `GuardedClient` stands in for an `httpx2.AsyncClient`: it leaves a `Note` under the id of each
JSON-RPC request that failed (status, `Retry-After`, whether it was sent), and gives the SDK a
response that keeps the transport alive. Streams of server-sent events are read and repaired before
the SDK reads them.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import urljoin, urlsplit

from ferrule.errors import ConfigurationError
from ferrule.mcp_bridge.transport.messages import LARGEST, Note, excerpt, read_message
from ferrule.net.connections import past_proxies
from ferrule.net.loopback import is_loopback

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

_CONNECT_S = 30.0
_EXCERPT = 300
_EVENTS = "text/event-stream"


class GuardedClient:
    """An `httpx2.AsyncClient`, as far as the SDK uses one, which notes failures of JSON-RPC requests instead of raising them.

    With `answers_apart` (the older HTTP+SSE: answers come on another stream, and a failed POST ends
    the transport) it reports failures to `failed` and answers 202.
    """

    def __init__(self, client: Any, *, answers_apart: bool = False) -> None:
        self._client = client
        self.answers_apart = answers_apart
        self.notes: dict[Any, Note] = {}
        self.last: Note | None = None
        self.failed: Callable[[Any], None] | None = None
        self.waits_for: Callable[[Any], bool] | None = None
        """Whether a request with this id is under way."""
        self.session_id: str | None = None
        """The session that the server named last; None where it names none, as from 2026-07-28 on."""
        self.max_redirects: int = client.max_redirects

    def build_request(self, *args: Any, **keywords: Any) -> Any:
        """httpx2's own."""
        return self._client.build_request(*args, **keywords)

    async def send(self, request: Any, **keywords: Any) -> Any:
        """Send a request; a failure of a JSON-RPC message becomes a response."""
        import httpx2

        await request.aread()  # the body of a followed redirect is a stream
        is_rpc, asked = _rpc_of(request)
        if asked is not None:
            self.notes.pop(asked, None)  # of the redirect
            self.last = None
        try:
            response = await self._client.send(request, **keywords)
            if is_rpc:
                self.session_id = response.headers.get("mcp-session-id", self.session_id)
                response = await self._inspect(asked, response)
            elif request.method == "GET" and _kind(response).startswith(_EVENTS):
                response = watch_events(response, self, None)
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            if not is_rpc:
                raise
            unsent = isinstance(
                error,
                httpx2.ConnectError
                | httpx2.ConnectTimeout
                | httpx2.PoolTimeout
                | httpx2.UnsupportedProtocol,
            )
            return self._instead(
                request,
                asked,
                Note(was_sent=not unsent, text=_error_line(error), cause=error),
            )
        if is_rpc and self.answers_apart and not response.is_success and not response.is_redirect:
            await response.aclose()
            return self._instead(request, asked, self.notes.get(asked))
        return response

    async def _inspect(self, asked: Any, response: Any) -> Any:
        """The response for the SDK, with a note if it holds no answer."""
        kind = _kind(response)
        if response.is_success and kind.startswith(_EVENTS):
            return watch_events(response, self, asked)
        is_accepted = response.status_code == 202
        if not response.is_redirect and not is_accepted:
            response = await _read_whole(
                response,
            )  # a body that breaks off fails here, not where it would end the transport
        if asked is None or (self.answers_apart and response.is_success):
            return response
        if kind.startswith("application/json") and not response.is_redirect and not is_accepted:
            return self._inspect_json(asked, response)
        text = response.text[:_EXCERPT] if response.is_closed and not response.is_success else ""
        if response.is_success:
            text = (
                "accepted without an answer" if is_accepted else f"content type {kind or 'unknown'}"
            )
        elif response.next_request is not None:
            text = f"a redirect to {response.next_request.url.copy_with(userinfo=b'', query=None, fragment=None)}"
        self._note_status(asked, response, text)
        return response

    def _inspect_json(self, asked: Any, response: Any) -> Any:
        from mcp_types import JSONRPCError, JSONRPCResponse

        found = read_message(response.content)
        message = found.message
        is_error = isinstance(message, JSONRPCError) and not found.broken
        if (
            response.is_success
            and (is_error or (isinstance(message, JSONRPCResponse)))
            and message.id in {asked, str(asked), None}
        ):
            message.id = asked  # an error's may be null
            return _with_content(
                response,
                message.model_dump_json(by_alias=True, exclude_unset=True).encode(),
            )
        if response.is_success:
            self._note_status(
                asked,
                response,
                found.broken
                or f"a message that does not answer this request: {excerpt(response.content)}",
            )
            return _with_content(response, b"")
        self._note_status(
            asked,
            response,
            "" if is_error else excerpt(response.content),
            has_error=is_error,
        )
        return response

    def _note_status(
        self,
        asked: Any,
        response: Any,
        text: str,
        *,
        has_error: bool = False,
    ) -> None:
        from ferrule.net.errors import retry_after_s  # late: most requests are answered

        after = retry_after_s(response.headers)
        note = Note(
            status=response.status_code,
            retry_after_s=after,
            text=text,
            was_answered=response.is_success,
            has_error=has_error,
        )
        self.note(asked, note)

    def _instead(self, request: Any, asked: Any, note: Note | None) -> Any:
        import httpx2

        if asked is not None and note is not None:
            self.note(asked, note)
            if self.failed is not None:
                self.failed(asked)
        return httpx2.Response(202 if self.answers_apart else 503, request=request)

    def note(self, asked: Any, note: Note) -> None:
        """Record why a request got no answer."""
        self.notes[asked] = self.last = note

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(*error)


def _rpc_of(request: Any) -> tuple[bool, Any]:
    """Whether a request carries a JSON-RPC message (an OAuth flow's do not), and the id it waits for (None for a notification)."""
    if request.method != "POST" or not request.headers.get("content-type", "").startswith(
        "application/json",
    ):
        return False, None
    try:
        found = json.loads(request.content)
    except ValueError:
        return False, None
    if not isinstance(found, dict) or "jsonrpc" not in found:
        return False, None
    body = cast("dict[str, Any]", found)
    return True, body.get("id") if "method" in body else None


async def _read_whole(response: Any) -> Any:
    """The same response, read. Raises `StreamError` for a body of more than `LARGEST` bytes, as it is after decompression."""
    import httpx2

    pieces: list[bytes] = []
    size_bytes = 0
    async for each in response.aiter_bytes():
        size_bytes += len(each)
        if size_bytes > LARGEST:
            await response.aclose()
            raise httpx2.StreamError(f"the answer has more than {LARGEST} bytes")
        pieces.append(each)
    return httpx2.Response(
        response.status_code,
        headers=_kept_headers(response),
        content=b"".join(pieces),
        request=response.request,
    )


def _kept_headers(response: Any) -> list[tuple[str, str]]:
    """The headers that hold for a body which was decoded."""
    hidden = ("content-encoding", "content-length", "transfer-encoding")
    return [
        (name, value)
        for name, value in response.headers.multi_items()
        if name.lower() not in hidden
    ]


def _kind(response: Any) -> str:
    return response.headers.get("content-type", "").lower()


def _with_content(response: Any, content: bytes) -> Any:
    """The same response, read, with another body."""
    import httpx2

    kind = {"content-type": "application/json"}
    session = response.headers.get("mcp-session-id")
    headers = kind if session is None else {**kind, "mcp-session-id": session}
    return httpx2.Response(
        response.status_code,
        headers=headers,
        content=content,
        request=response.request,
    )


def _error_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


# -- server-sent events
# -------------------------------------------------------------------------------------------


def watch_events(response: Any, client: GuardedClient, asked: Any) -> Any:
    """A copy of a response whose events are repaired and noted as the SDK reads them.

    `asked` is the id of the request that was posted; None for a stream of its own.
    """
    import httpx2

    class RepairedStream(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for each in _events(response, client, asked):
                yield each

        async def aclose(self) -> None:
            await response.aclose()

    return httpx2.Response(
        response.status_code,
        headers=_kept_headers(response),
        stream=RepairedStream(),
        request=response.request,
    )


async def _events(response: Any, client: GuardedClient, asked: Any) -> AsyncGenerator[bytes]:
    import httpx2

    is_answered = asked is None
    try:
        async for event in httpx2.EventSource(response, max_event_size=LARGEST):
            data: str = event.data
            if event.event == "endpoint" and client.answers_apart:
                _refuse_other_origin(str(response.request.url), data)
            if event.event == "message" and data:
                is_answer, data = _read_event(data, client, asked)
                is_answered = is_answered or is_answer
            yield _encode_event(event, data)
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
        if not is_answered:
            client.note(
                asked,
                Note(text=f"the answer broke off: {_error_line(error)}", cause=error),
            )
        raise
    if not is_answered:
        client.note(asked, Note(text="the answer broke off: the stream ended without it"))


def _read_event(data: str, client: GuardedClient, asked: Any) -> tuple[bool, str]:
    """Whether it ends the wait for an answer, and the data for the SDK."""
    from mcp_types import JSONRPCError, JSONRPCResponse

    text = data.encode("utf-8", "replace")
    found = read_message(text)
    if found.message is None:
        if asked is not None:  # the SDK takes it for the answer
            client.note(
                asked,
                Note(was_answered=True, text=f"an event that cannot be read: {excerpt(text)}"),
            )
        return True, data
    if not isinstance(found.message, JSONRPCError | JSONRPCResponse):
        return False, data
    number = found.message.id if asked is None else asked
    if not found.broken:
        client.notes.pop(number, None)
    elif asked is not None or (client.waits_for is not None and client.waits_for(number)):
        client.note(number, Note(was_answered=True, text=found.broken))
    return True, found.message.model_dump_json(by_alias=True, exclude_unset=True)


def _encode_event(event: Any, data: str) -> bytes:
    fields = [
        ("event", event.event),
        ("id", event.id),
        ("retry", "" if event.retry is None else str(event.retry)),
    ]
    lines = [f"{name}: {value}" for name, value in fields if value]
    lines += [f"data: {line}" for line in data.split("\n")] if data else []
    return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")


def _refuse_other_origin(url: str, endpoint: str) -> None:
    """Raises `SSEError`. The SDK refuses such an endpoint too, but without an error that reaches the caller."""
    import httpx2

    here, there = urlsplit(url), urlsplit(urljoin(url, endpoint))
    if (here.scheme, here.netloc) != (there.scheme, there.netloc):
        raise httpx2.SSEError(
            f"the server wants messages to be sent to another origin, {there.scheme}://{there.hostname}",
        )


# -- connecting
# ---------------------------------------------------------------------------------------------------


def refuse_plain_http(url: str, name: str, *, allowed: bool) -> None:
    """Raises `ConfigurationError` for an address that is neither https nor this machine, unless `allowed`."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise ConfigurationError(f"The address of MCP server `{name}` must be a http(s) URL.")
    if parts.scheme == "http" and not is_loopback(parts.hostname) and not allowed:
        msg = (
            f"MCP server `{name}` uses plain http at {parts.hostname}: everything sent, tokens too, can be read on the way. "
            "Use https, or pass `allow_http=True` if you trust the network."
        )
        raise ConfigurationError(msg)


def _new_client(headers: Mapping[str, str], auth: Any) -> Any:
    import httpx2

    # No read timeout: each request has a deadline of its own, and a stream of notifications may be
    # silent for hours.
    return httpx2.AsyncClient(
        headers=dict(headers),
        auth=auth,
        timeout=httpx2.Timeout(_CONNECT_S, read=None),
        mounts=past_proxies(),
    )


@contextlib.asynccontextmanager
async def http_streams(
    url: str,
    headers: Mapping[str, str],
    auth: Any,
    own_client: Any,
    guarded: Callable[[GuardedClient], None],
) -> AsyncGenerator[tuple[Any, Any]]:
    """Streamable HTTP. The user closes `own_client`, which has its own headers and auth."""
    from mcp.client.streamable_http import streamable_http_client

    async with contextlib.AsyncExitStack() as stack:
        client = (
            own_client
            if own_client is not None
            else await stack.enter_async_context(_new_client(headers, auth))
        )
        guard = GuardedClient(client)
        guarded(guard)
        streams = streamable_http_client(
            url,
            http_client=cast("Any", guard),
            max_sse_event_size=LARGEST,
        )
        yield await stack.enter_async_context(streams)


@contextlib.asynccontextmanager
async def sse_streams(
    url: str,
    headers: Mapping[str, str],
    auth: Any,
    guarded: Callable[[GuardedClient], None],
) -> AsyncGenerator[tuple[Any, Any]]:
    """The older HTTP+SSE of revision 2024-11-05."""
    from mcp.client.sse import sse_client

    def make(**_: Any) -> Any:
        guard = GuardedClient(_new_client(headers, auth), answers_apart=True)
        guarded(guard)
        return guard

    async with sse_client(url, httpx_client_factory=cast("Any", make)) as streams:
        yield streams
