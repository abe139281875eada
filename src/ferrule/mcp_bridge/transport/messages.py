"""JSON-RPC messages from a server, from bytes to the SDK's messages.

The SDK drops an answer that it cannot read, and the request would wait for its timeout. Here such
an answer becomes an error under the same id: `read_message` first repairs the characters, and if
that does not help, looks for the id in the broken text.
"""

from __future__ import annotations

import json
import re
from typing import Any

from msgspec import Struct

LARGEST = 64 * 1024 * 1024
"""The most bytes that one message may have. Results of 20 MB occur."""

_ESCAPE = re.compile(
    rb"\\(?:u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"  # a pair of surrogates
    rb"|(?P<lone>u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|.)",
    re.DOTALL,
)
# A string without an end is one token, or each quotation mark in it would be tried as a beginning.
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[{}\[\]:,]|[^\s{}\[\]:,"]++', re.DOTALL)
_ID_WITHIN = 1 << 20
"""Bytes of an unreadable message that are searched for its id."""
_EXCERPT = 200
_PARSE_ERROR = -32700


class Note(Struct, frozen=True, kw_only=True):
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
    """A message of the server or the network, shortened."""
    cause: BaseException | None = None


class ServerMessage(Struct, frozen=True):
    """One message of a server."""

    message: Any = None
    """The SDK's message, or None for bytes that are not a message and answer no request."""
    broken: str = ""
    """Why an answer could not be read; `message` is then an error of ours under its id."""


def read_message(text: bytes) -> ServerMessage:
    """Read one message; repair its characters if that makes it readable."""
    from mcp.shared.dispatcher import coerce_request_id
    from mcp_types import ErrorData, JSONRPCError

    message = _parse(text)
    if message is None:
        message = _parse(repair_characters(text))
    if message is not None:
        return ServerMessage(message)
    request_id = answered_id(text)
    if request_id is None:
        return ServerMessage()
    broken = f"an answer that cannot be read: {excerpt(text)}"
    error = ErrorData(code=_PARSE_ERROR, message=broken)
    answer = JSONRPCError(jsonrpc="2.0", id=coerce_request_id(request_id), error=error)
    return ServerMessage(answer, broken)


def _parse(text: bytes) -> Any:
    from mcp_types import jsonrpc_message_adapter

    try:
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    except ValueError:
        return None


def repair_characters(text: bytes) -> bytes:
    """Replace lone surrogates and bytes that are not UTF-8 by U+FFFD."""
    text = text.decode("utf-8", "replace").encode()
    return _ESCAPE.sub(_replace_lone_surrogate, text)


def _replace_lone_surrogate(escape: re.Match[bytes]) -> bytes:
    return rb"\ufffd" if escape["lone"] else escape[0]


def answered_id(text: bytes) -> int | str | None:
    """The id of the request that a message answers, even if the rest cannot be read.

    None if it is not an answer. A whole message without a method is one, even if it says nothing.
    """
    members = _outer_members(text)
    if "method" in members:
        return None
    is_answer = bool(members.keys() & {"result", "error"})
    # Other objects with an id may be lines of a log, and a broken message may lack its method.
    if not is_answer and not ("jsonrpc" in members and _is_json(text)):
        return None
    request_id = members.get("id")
    if isinstance(request_id, bool):
        return None
    if isinstance(request_id, float) and request_id.is_integer():
        return int(request_id)
    if isinstance(request_id, int | str):
        return request_id
    return None


def _outer_members(text: bytes) -> dict[str, Any]:
    """The members of the outermost object that are scalars; the first token of the others."""
    members: dict[str, Any] = {}
    depth = 0
    key = ""
    is_value = False
    for match in _TOKEN.finditer(text, 0, _ID_WITHIN):
        token = match[0]
        if token in b"}]":
            depth -= 1
        if depth == 1:
            if token == b":":
                is_value = True
            elif token == b",":
                is_value = False
            elif is_value:
                members.setdefault(key, _scalar(token))
            else:
                key = str(_scalar(token))
        if token in b"{[":
            depth += 1
    return members


def _scalar(token: bytes) -> Any:
    try:
        return json.loads(token)
    except ValueError:
        return None


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def excerpt(text: bytes) -> str:
    """The beginning of a message, for an error."""
    return text[:_EXCERPT].decode("utf-8", "replace").strip() or "nothing"
