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
import re
from codecs import BOM_UTF8
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import urljoin, urlsplit

from ferrule.errors import ConfigurationError, shown
from ferrule.mcp_bridge.redact import public_url
from ferrule.mcp_bridge.transport.messages import LARGEST, Note, excerpt, read_message
from ferrule.net.connections import new_client
from ferrule.net.errors import retry_after_s
from ferrule.net.loopback import is_loopback
from ferrule.net.reading import aread_whole, check_encoding, decoded_headers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping

    from ferrule.mcp_bridge.spec import ServerSpec

_CONNECT_S = 30.0
_SIDE_TIMEOUT_S = 30.0
"""How long to read an answer that no request of a program waits for."""
_EXCERPT = 300
_ACCEPTED = 202
_JSON = "application/json"
_EVENTS = "text/event-stream"
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""RFC 9110, 5.6.2."""
_NOT_IN_HEADERS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""RFC 9110, 5.5: all control characters but the tab."""


class GuardedClient:
    """An `httpx2.AsyncClient`, as far as the SDK uses one, that notes failures.

    A failed JSON-RPC request does not raise: it gets a note and a response that keeps the SDK's
    transport alive. With `answers_apart` (the older HTTP+SSE: answers come on another stream, and a
    failed POST ends the transport) it reports failures to `failed` and answers 202.
    """

    def __init__(self, client: Any, *, answers_apart: bool = False) -> None:
        self._client = client
        self.answers_apart = answers_apart
        self.notes: dict[Any, Note] = {}
        """By the id of the request."""
        self.last: Note | None = None
        self.failed: Callable[[Any], None] | None = None
        self.waits_for: Callable[[Any], bool] | None = None
        """Whether a request with this id is under way."""
        self.session_id: str | None = None
        """The session that the server named last; None if it names none, as from 2026-07-28 on."""
        self.max_redirects: int = client.max_redirects

    def build_request(self, *args: Any, **keywords: Any) -> Any:
        """httpx2's own."""
        return self._client.build_request(*args, **keywords)

    async def send(self, request: Any, **keywords: Any) -> Any:
        """Send a request; a failure of a JSON-RPC message becomes a response."""
        import httpx2

        await request.aread()  # the body of a followed redirect is a stream
        is_rpc, request_id = _rpc_of(request)
        if request_id is not None:
            self.notes.pop(request_id, None)  # of the redirect
            self.last = None
        try:
            response = await self._client.send(request, **keywords)
            if is_rpc:
                self.session_id = response.headers.get("mcp-session-id", self.session_id)
            is_listening = not is_rpc and request.method == "GET"
            if _is_events(response) and (is_listening or (is_rpc and response.is_success)):
                response = watch_events(response, self, request_id)
            else:
                response = await self._read(response, request_id)
                if is_rpc:
                    response = self._inspect(request_id, response)
        except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
            if not is_rpc:
                raise
            note = Note(was_sent=not _is_unsent(error), text=_error_line(error), cause=error)
            return self._instead(request, request_id, note)
        is_refused = not response.is_success and not response.is_redirect
        if is_rpc and self.answers_apart and is_refused:
            await response.aclose()
            return self._instead(request, request_id, self.notes.get(request_id))
        return response

    async def _read(self, response: Any, request_id: Any) -> Any:
        """The response, read whole within bounds: the SDK would read it without.

        A body that breaks off fails here, not where it would end the transport. An answer has the
        deadline of its request.
        """
        if response.status_code == _ACCEPTED:  # the SDK does not read it
            return response
        timeout_s = None
        if request_id is None:
            timeout_s = _SIDE_TIMEOUT_S
        return await aread_whole(response, timeout_s, LARGEST)

    def _inspect(self, request_id: Any, response: Any) -> Any:
        """The response for the SDK, with a note if it holds no answer."""
        if request_id is None or (self.answers_apart and response.is_success):
            return response
        content_type = _content_type(response)
        has_body = not response.is_redirect and response.status_code != _ACCEPTED
        if has_body and (content_type.startswith(_JSON) or _looks_like_json(response)):
            return self._inspect_json(request_id, response)
        self._note_status(request_id, response, _why_no_answer(response, content_type))
        return response

    def _inspect_json(self, request_id: Any, response: Any) -> Any:
        from mcp_types import JSONRPCError, JSONRPCResponse

        received = read_message(_answer_in(response.content, request_id))
        message = received.message
        is_error = isinstance(message, JSONRPCError) and not received.broken
        if not response.is_success:
            if is_error:
                text = ""
            else:
                text = excerpt(response.content)
            self._note_status(request_id, response, text, has_error=is_error)
            return response
        is_answer = is_error or isinstance(message, JSONRPCResponse)
        # A server may write a number as a text, and the id of an error may be null.
        if is_answer and message.id in {request_id, str(request_id), None}:
            message.id = request_id
            content = message.model_dump_json(by_alias=True, exclude_unset=True).encode()
            return _with_content(response, content)
        why = f"a message that does not answer this request: {excerpt(response.content)}"
        self._note_status(request_id, response, received.broken or why)
        return _with_content(response, b"")

    def _note_status(
        self, request_id: Any, response: Any, text: str, *, has_error: bool = False
    ) -> None:
        note = Note(
            status=response.status_code,
            retry_after_s=retry_after_s(response.headers),
            text=text,
            was_answered=response.is_success,
            has_error=has_error,
        )
        self.note(request_id, note)

    def _instead(self, request: Any, request_id: Any, note: Note | None) -> Any:
        """A response for the SDK in the place of a failure."""
        import httpx2

        if request_id is not None and note is not None:
            self.note(request_id, note)
            if self.failed is not None:
                self.failed(request_id)
        return httpx2.Response(_ACCEPTED if self.answers_apart else 503, request=request)

    def note(self, request_id: Any, note: Note) -> None:
        """Record why a request got no answer."""
        self.notes[request_id] = note
        self.last = note

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._client.__aexit__(*error)


def _rpc_of(request: Any) -> tuple[bool, Any]:
    """Whether a request carries a JSON-RPC message (an OAuth flow's do not), and its id.

    The id is None for a notification, as nothing waits for an answer to it.
    """
    content_type = request.headers.get("content-type", "")
    if request.method != "POST" or not content_type.startswith(_JSON):
        return False, None
    try:
        body = json.loads(request.content)
    except ValueError:
        return False, None
    if not isinstance(body, dict) or "jsonrpc" not in body:
        return False, None
    body = cast("dict[str, Any]", body)
    return True, body.get("id") if "method" in body else None


def _is_unsent(error: Exception) -> bool:
    """Whether a request surely did not reach the server."""
    import httpx2

    return isinstance(
        error,
        httpx2.ConnectError
        | httpx2.ConnectTimeout
        | httpx2.PoolTimeout
        | httpx2.UnsupportedProtocol,
    )


def _why_no_answer(response: Any, content_type: str) -> str:
    if response.is_success:
        if response.status_code == _ACCEPTED:
            return "accepted without an answer"
        return f"content type {content_type or 'unknown'}"
    if response.next_request is not None:
        url = response.next_request.url.copy_with(userinfo=b"", query=None, fragment=None)
        return f"a redirect to {url}"
    if response.is_closed:
        return response.text[:_EXCERPT]
    return ""


def _answer_in(content: bytes, request_id: Any) -> bytes:
    """The answer to a request in a body, which may be an array of messages: a batch."""
    content = content.removeprefix(BOM_UTF8).strip()
    if not content.startswith(b"["):
        return content
    try:
        messages: Any = json.loads(content)
    except (ValueError, RecursionError):
        return content
    for message in messages:
        if isinstance(message, dict):
            fields = cast("dict[str, Any]", message)
            if "method" not in fields and fields.get("id") in {request_id, str(request_id)}:
                return json.dumps(fields).encode()
    return content


def _looks_like_json(response: Any) -> bool:
    """Whether a body is JSON, whatever its type says: some servers say `text/plain`, or nothing."""
    content = response.content.removeprefix(BOM_UTF8).lstrip()
    return content.startswith((b"{", b"["))


def _is_events(response: Any) -> bool:
    return _content_type(response).startswith(_EVENTS)


def _content_type(response: Any) -> str:
    return response.headers.get("content-type", "").lower()


def _with_content(response: Any, content: bytes) -> Any:
    """The same response, read, with another body."""
    import httpx2

    headers = {"content-type": _JSON}
    session_id = response.headers.get("mcp-session-id")
    if session_id is not None:
        headers["mcp-session-id"] = session_id
    return httpx2.Response(
        response.status_code, headers=headers, content=content, request=response.request
    )


def _error_line(error: BaseException) -> str:
    if str(error):
        return f"{type(error).__name__}: {error}"
    return type(error).__name__


# -- server-sent events


def watch_events(response: Any, client: GuardedClient, request_id: Any) -> Any:
    """A copy of a response whose events are repaired and noted as the SDK reads them.

    `request_id` is that of the request that was posted; None for a stream of its own.
    """
    import httpx2

    class RepairedStream(httpx2.AsyncByteStream):
        async def __aiter__(self) -> AsyncIterator[bytes]:
            async for event in _events(response, client, request_id):
                yield event

        async def aclose(self) -> None:
            await response.aclose()

    return httpx2.Response(
        response.status_code,
        headers=decoded_headers(response),
        stream=RepairedStream(),
        request=response.request,
    )


async def _events(response: Any, client: GuardedClient, request_id: Any) -> AsyncGenerator[bytes]:
    import httpx2

    waits = request_id is not None
    try:
        check_encoding(response.headers)
        async for event in httpx2.EventSource(response, max_event_size=LARGEST):
            data: str = event.data
            if event.event == "endpoint" and client.answers_apart:
                _refuse_other_origin(str(response.request.url), data)
            if event.event == "message" and data:
                ends_wait, data = _read_event(data, client, request_id)
                if ends_wait:
                    waits = False
            yield _encode_event(event, data)
    except (httpx2.HTTPError, httpx2.StreamError, OSError) as error:
        if waits:
            why = f"the answer broke off: {_error_line(error)}"
            client.note(request_id, Note(text=why, cause=error))
        raise
    if waits:
        client.note(request_id, Note(text="the answer broke off: the stream ended without it"))


def _read_event(data: str, client: GuardedClient, request_id: Any) -> tuple[bool, str]:
    """Whether it ends the wait for an answer, and the data for the SDK."""
    from mcp_types import JSONRPCError, JSONRPCResponse

    text = data.encode("utf-8", "replace")
    received = read_message(text)
    if received.message is None:
        if request_id is not None:  # the SDK takes it for the answer
            why = f"an event that cannot be read: {excerpt(text)}"
            client.note(request_id, Note(was_answered=True, text=why))
        return True, data
    if not isinstance(received.message, JSONRPCError | JSONRPCResponse):
        return False, data
    if request_id is None:
        answered_id = received.message.id
    else:
        answered_id = request_id
    is_awaited = request_id is not None
    if not is_awaited and client.waits_for is not None:
        is_awaited = client.waits_for(answered_id)
    if not received.broken:
        client.notes.pop(answered_id, None)
    elif is_awaited:
        client.note(answered_id, Note(was_answered=True, text=received.broken))
    return True, received.message.model_dump_json(by_alias=True, exclude_unset=True)


def _encode_event(event: Any, data: str) -> bytes:
    lines: list[str] = []
    if event.event:
        lines.append(f"event: {event.event}")
    if event.id:
        lines.append(f"id: {event.id}")
    if event.retry is not None:
        lines.append(f"retry: {event.retry}")
    if data:
        lines.extend(f"data: {line}" for line in data.split("\n"))
    return ("\n".join(lines) + "\n\n").encode("utf-8", "replace")


def _refuse_other_origin(url: str, endpoint: str) -> None:
    """Raises `SSEError` for an endpoint at another origin.

    The SDK refuses it too, but without an error that reaches the caller.
    """
    import httpx2

    here, there = urlsplit(url), urlsplit(urljoin(url, endpoint))
    if (here.scheme, here.netloc) != (there.scheme, there.netloc):
        raise httpx2.SSEError(
            "the server wants messages to be sent to another origin, "
            f"{there.scheme}://{there.hostname}"
        )


# -- connecting


def check_remote(spec: ServerSpec, *, allow_http: bool) -> None:
    """Raises `ConfigurationError` for an address or a header that no request can have.

    Also for plain http to another machine, unless `allow_http`.
    """
    if spec.transport not in {"http", "sse"}:
        return
    scheme, host = _scheme_and_host(spec.url)
    if scheme not in {"http", "https"} or not host:
        raise ConfigurationError(
            f"The address of MCP server `{spec.name}` must be an http(s) URL, "
            f"found {shown(public_url(spec.url))}."
        )
    if scheme == "http" and not is_loopback(host) and not allow_http:
        raise ConfigurationError(
            f"MCP server `{spec.name}` uses plain http at {host}: everything sent, tokens "
            "too, can be read on the way. Use https, or pass `allow_http=True` if you trust the "
            "network."
        )
    for name, value in spec.headers.items():
        if _HEADER_NAME.fullmatch(name) is None:
            raise ConfigurationError(
                f"MCP server `{spec.name}` has a header named {shown(name)}. A name consists of "
                "letters, digits and hyphens."
            )
        if _NOT_IN_HEADERS.search(value) is not None:
            raise ConfigurationError(
                f"The header `{name}` of MCP server `{spec.name}` holds a line break or another "
                "control character, perhaps at the end of a token that was read from a file."
            )


def _scheme_and_host(url: str) -> tuple[str, str]:
    """The scheme and the host of an address; two empty texts if it is not one."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for one that is no number
    except ValueError:
        return "", ""
    return parts.scheme, parts.hostname or ""


def _new_client(headers: Mapping[str, str], auth: Any) -> Any:
    from httpx2 import Timeout

    # No read timeout: each request has a deadline of its own, and a stream of notifications may be
    # silent for hours.
    timeout = Timeout(_CONNECT_S, read=None)
    return new_client(headers=dict(headers), auth=auth, timeout=timeout)


@contextlib.asynccontextmanager
async def http_streams(
    url: str,
    headers: Mapping[str, str],
    auth: Any,
    users_client: Any,
    guarded: Callable[[GuardedClient], None],
) -> AsyncGenerator[tuple[Any, Any]]:
    """Streamable HTTP. The user closes `users_client`, which has its own headers and auth."""
    from mcp.client.streamable_http import streamable_http_client

    async with contextlib.AsyncExitStack() as stack:
        client = users_client
        if client is None:
            client = await stack.enter_async_context(_new_client(headers, auth))
        guard = GuardedClient(client)
        guarded(guard)
        streams = streamable_http_client(
            url, http_client=cast("Any", guard), max_sse_event_size=LARGEST
        )
        yield await stack.enter_async_context(streams)


@contextlib.asynccontextmanager
async def sse_streams(
    url: str, headers: Mapping[str, str], auth: Any, guarded: Callable[[GuardedClient], None]
) -> AsyncGenerator[tuple[Any, Any]]:
    """The older HTTP+SSE of revision 2024-11-05."""
    from mcp.client.sse import sse_client

    def make(**_: Any) -> Any:
        guard = GuardedClient(_new_client(headers, auth), answers_apart=True)
        guarded(guard)
        return guard

    async with sse_client(url, httpx_client_factory=cast("Any", make)) as streams:
        yield streams
