"""What a server wrote, as the SDK is to read it: mended where that loses nothing, and told apart from what is no answer.

In: one JSON-RPC message as bytes. Out: the SDK's message. An answer to a request that the SDK could not read would be dropped, and waited
for; it becomes an error under the same id, and says that nobody but us made it up.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ferrule.values.record import Record

_ESCAPE = re.compile(rb"\\(?:u[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL)
_PAIR = 12  # bytes of two escapes that are one character together
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\]:,]|[^\s{}\[\]:,"]++', re.DOTALL)
_LOOKED_AT = 1 << 20
"""Bytes of a message that cannot be read in which its id is looked for."""
_EXCERPT = 200
NO_ANSWER = -32700
LARGEST = 64 * 1024 * 1024
"""Bytes of one message. A result of 20 MB is unusual, but no fault."""


class Note(Record, kw_only=True):
    """What became of one JSON-RPC request on its way; there is one only where no answer came that the SDK can take as it is.

    So it also tells who speaks: an error that the session raises is the server's own word if there is no note, or one that `has_error`.
    """

    was_sent: bool = True
    """Whether the server may have got it."""
    was_answered: bool = False
    """Whether it was answered, by what is no answer."""
    has_error: bool = False
    """Whether it was answered with a JSON-RPC error."""
    status: int | None = None
    retry_after_s: float | None = None
    text: str = ""
    """What the server or the network said, shortened."""
    cause: BaseException | None = None


class Heard(Record):
    """One message of a server."""

    message: Any = None
    """The SDK's; None where it is no message, and answers nothing."""
    broken: str = ""
    """Why an answer could not be read; `message` is then an error of our own in its place."""


def heard(text: bytes) -> Heard:
    """Read one message."""
    from mcp.shared.dispatcher import coerce_request_id
    from mcp_types import ErrorData, JSONRPCError, jsonrpc_message_adapter

    for each in (lambda: text, lambda: mended(text)):
        try:
            return Heard(jsonrpc_message_adapter.validate_json(each(), by_name=False))
        except ValueError:
            continue
    number = answered_id(text)
    if number is None:
        return Heard()
    broken = f"an answer that cannot be read: {excerpt(text)}"
    return Heard(JSONRPCError(jsonrpc="2.0", id=coerce_request_id(number), error=ErrorData(code=NO_ANSWER, message=broken)), broken)


def mended(text: bytes) -> bytes:
    """The same JSON with U+FFFD for halves of a character, which stand for nothing: lone surrogates, and bytes that are no UTF-8."""
    text = text.decode("utf-8", "replace").encode()
    return _ESCAPE.sub(lambda found: rb"\ufffd" if len(found[0]) not in {2, _PAIR} else found[0], text) if b"\\u" in text else text


def answered_id(text: bytes) -> int | str | None:
    """The id of the request that a message answers, also where the rest cannot be read; None for what is no answer."""
    members: dict[str, Any] = {}
    depth, key, is_value = 0, "", False
    for found in _TOKEN.finditer(text, 0, _LOOKED_AT):
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
    number = members.get("id")
    if "method" in members or not members.keys() & {"result", "error"} or isinstance(number, bool):
        return None
    if isinstance(number, float) and number.is_integer():
        return int(number)
    return number if isinstance(number, int | str) else None


def _scalar(token: bytes) -> Any:
    try:
        return json.loads(token)
    except ValueError:
        return None


def excerpt(text: bytes) -> str:
    """The beginning, for a message."""
    return text[:_EXCERPT].decode("utf-8", "replace").strip() or "nothing"
