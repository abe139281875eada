"""JSON-RPC messages on their way between the SDK and a server.

`read_message` turns bytes into the SDK's message. The SDK drops an answer that it cannot read, and
the request would wait for its timeout; such an answer becomes an error under the same id.
`WatchedReader` and `WatchedWriter` report the end of a stream and each request sent.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Self

from ferrule.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)",
    re.DOTALL,
)
_PAIR = 12  # bytes of a surrogate pair of escapes
# A string without an end is one token, or each quotation mark in it would be tried as a beginning.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[{}\[\]:,]|[^\s{}\[\]:,"]++', re.DOTALL)
_ID_WITHIN = 1 << 20
"""Bytes of an unreadable message that are searched for its id."""
_EXCERPT = 200
_TRACE = ("traceparent", "tracestate", "baggage")
"""What the SDK adds to `_meta` (SEP-414)."""
_PARSE_ERROR = -32700
LARGEST = 64 * 1024 * 1024
"""The most bytes that one message may have. Results of 20 MB occur."""


class Note(Record, kw_only=True):
    """Why a JSON-RPC request got no answer that the SDK can read.

    If the session raises an error and the request has no note, or one with `has_error`, the server
    sent that error.
    """

    was_sent: bool = True
    """Whether the server may have received the request."""
    was_answered: bool = False
    """Whether the server answered with something other than a JSON-RPC answer."""
    has_error: bool = False
    """Whether the server answered with a JSON-RPC error."""
    status: int | None = None
    retry_after_s: float | None = None
    text: str = ""
    """What the server or the network said, shortened."""
    cause: BaseException | None = None


class ServerMessage(Record):
    """One message of a server."""

    message: Any = None
    """The SDK's message, or None for bytes that are no message and answer no request."""
    broken: str = ""
    """Why an answer could not be read; `message` is then an error of ours under its id."""


def read_message(text: bytes) -> ServerMessage:
    """Read one message; repair its characters if that makes it readable."""
    from mcp.shared.dispatcher import coerce_request_id
    from mcp_types import ErrorData, JSONRPCError, jsonrpc_message_adapter

    for each in (lambda: text, lambda: repair_characters(text)):
        try:
            return ServerMessage(jsonrpc_message_adapter.validate_json(each(), by_name=False))
        except ValueError:
            continue
    number = answered_id(text)
    if number is None:
        return ServerMessage()
    broken = f"an answer that cannot be read: {excerpt(text)}"
    error = ErrorData(code=_PARSE_ERROR, message=broken)
    return ServerMessage(
        JSONRPCError(jsonrpc="2.0", id=coerce_request_id(number), error=error),
        broken,
    )


def repair_characters(text: bytes) -> bytes:
    """Replace lone surrogates and bytes that are not UTF-8 by U+FFFD."""
    text = text.decode("utf-8", "replace").encode()
    return (
        _ESCAPE.sub(lambda found: rb"\ufffd" if len(found[0]) not in {2, _PAIR} else found[0], text)
        if b"\\u" in text
        else text
    )


def answered_id(text: bytes) -> int | str | None:
    """The id of the request that a message answers, even if the rest cannot be read; None if it is no answer."""
    members: dict[str, Any] = {}
    depth, key, is_value = 0, "", False
    for found in _TOKEN.finditer(text, 0, _ID_WITHIN):
        token = found[0]
        depth -= token in b"}]"
        if depth == 1 and token == b":":
            is_value = True
        elif depth == 1 and token == b",":
            is_value = False
        elif depth == 1 and is_value:
            members.setdefault(key, _scalar(token))
        elif depth == 1:
            key = str(_scalar(token))
        depth += token in b"{["
    found = members.get("id")
    if "method" in members or not members.keys() & {"result", "error"} or isinstance(found, bool):
        return None
    if isinstance(found, float) and found.is_integer():
        return int(found)
    return found if isinstance(found, int | str) else None


def _scalar(token: bytes) -> Any:
    try:
        return json.loads(token)
    except ValueError:
        return None


def excerpt(text: bytes) -> str:
    """The beginning of a message, for an error."""
    return text[:_EXCERPT].decode("utf-8", "replace").strip() or "nothing"


def as_plain_json(value: Any) -> Any:
    """A value as plain JSON. Raises `ValueError`, `TypeError` or `RecursionError` for NaN, a lone surrogate, an object, deep nesting."""
    from pydantic_core import to_jsonable_python

    plain = to_jsonable_python(value)
    json.dumps(plain, allow_nan=False, ensure_ascii=False).encode()
    return plain


# -- watched streams
# ----------------------------------------------------------------------------------------------


class _Watched:
    def __init__(self, stream: Any, watch: Callable[..., None]) -> None:
        self._stream, self._watch = stream, watch

    async def aclose(self) -> None:
        """Close it."""
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> Any:
        return await self._stream.__aexit__(*error)


class WatchedReader(_Watched):
    """A stream to read from, which counts its messages and calls `watch()` once when it ends."""

    count = 0

    @property
    def last_context(self) -> Any:
        """The context variables of the last message."""
        return getattr(self._stream, "last_context", None)

    async def receive(self) -> Any:
        """The next message."""
        found = await self._stream.receive()
        self.count += 1
        return found

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            found = await self._stream.__anext__()
        except StopAsyncIteration:
            self._watch()
            raise
        self.count += 1
        return found


class WatchedWriter(_Watched):
    """A stream to write to, which calls `watch` with the id of each request. Without `trace` it sends no trace context."""

    def __init__(self, stream: Any, watch: Callable[..., None], *, trace: bool = True) -> None:
        super().__init__(stream, watch)
        self._sends_trace = trace

    async def send(self, item: Any, /) -> None:
        """Send one message."""
        params: Any = None if self._sends_trace else getattr(item.message, "params", None)
        meta: Any = params.get("_meta") if params else None
        for name in _TRACE if meta else ():  # the SDK adds it to each request, without an option
            meta.pop(name, None)
        request_id = getattr(item.message, "id", None)
        if request_id is not None and hasattr(
            item.message,
            "method",
        ):  # a request: an answer has an id of the server's
            self._watch(
                request_id,
            )  # before the write: one that is cancelled half way may have gone out
        await self._stream.send(item)
