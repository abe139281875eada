"""Reads a provider's JSON, where any field may be missing or have another type.

Also what several protocols share: parts that cannot be sent, and settings that may not be set.
"""

from __future__ import annotations

import logging
from codecs import BOM_UTF8
from contextlib import suppress
from math import isfinite
from typing import TYPE_CHECKING, Any, NoReturn, cast

from pydantic_core import from_json

from ferrule.encoding.encode import json_bytes
from ferrule.encoding.written import may_hold_floats, read_with_digits, without_digits
from ferrule.errors import BadRequestError, ConfigurationError, UnavailableError, shown
from ferrule.net.errors import HIGHEST_COST
from ferrule.values.calls.confidence import Token

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ferrule.models.providers import Dialect
    from ferrule.values.content.parts import Part
    from ferrule.values.conversation.exchange import Declarations, Request, ToolChange

Json = dict[str, Any]

_log = logging.getLogger("ferrule.models")
_TICKS = 10**10
"""How many of xAI's units of cost make one US dollar."""
_logged: set[tuple[str, str, str]] = set()
_OTHER_PROTOCOL = (
    "If this happens again, the server may speak another protocol: check `base_url=` and `wire=`."
)


# -- bodies


def opened(payload: Json | bytes) -> tuple[Json, Any]:
    """The JSON object of an answer's body, and the value for `Response.body`."""
    if isinstance(payload, bytes):
        with suppress(ValueError):
            body = _parse(payload)
            if isinstance(body, dict):
                return cast("Json", body), payload
        payload = decode(payload)
    return payload, without_digits(payload)


def decode(body: bytes) -> Json:
    """Decode a body into a JSON object; a list of one, as Google sends errors, stands for it.

    Raises `BadRequestError`, which shows the body, if it is anything else.
    """
    body = body.removeprefix(BOM_UTF8)  # RFC 8259, section 8.1: a parser may ignore it
    try:
        value: Any = _parse(body)
    except ValueError:
        value = _decode_leniently(body)
    if isinstance(value, list) and len(cast("list[Any]", value)) == 1:
        value = cast("list[Any]", value)[0]
    if not isinstance(value, dict):
        found = shown(cast("Any", value))
        raise BadRequestError(f"expected a JSON object, got {found}. {_OTHER_PROTOCOL}")
    return cast("Json", value)


def decode_event(data: bytes) -> Json:
    """Decode one event of a stream.

    Raises `UnavailableError` for anything but a JSON object: the stream broke, and a retry may
    succeed.
    """
    try:
        return decode(data)
    except BadRequestError as error:
        raise UnavailableError(
            f"the stream broke: one of its events cannot be read: {error}"
        ) from error


def _parse(body: bytes) -> Any:
    """Parse a body. Numbers keep their digits: arguments of calls may be objects in it."""
    if may_hold_floats(body):
        with suppress(ValueError, RecursionError):
            return read_with_digits(body)
    return from_json(body)


def _decode_leniently(body: bytes) -> Any:
    """Decode a body that the strict parser refuses: it has lone surrogates, or is invalid JSON."""
    text = body.decode("utf-8", "replace").strip()
    if not text:
        raise BadRequestError(f"the answer is empty. Ask again. {_OTHER_PROTOCOL}")
    if text.startswith("<"):
        raise BadRequestError(
            f"expected JSON, got a page of HTML or XML: {shown(text)}. "
            "Is the base URL right? Most end in `/v1`."
        )
    try:
        return read_with_digits(text)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(
            f"the answer is not JSON ({error}): {shown(text)}. "
            f"If it was cut off, ask again. {_OTHER_PROTOCOL}"
        ) from error


def no_answer(description: str, body: Json) -> str:
    """The message for an answer without content."""
    return f"the answer has {description}: {shown(body)}. Ask again. {_OTHER_PROTOCOL}"


# -- fields


def mapping(value: Any) -> Json:
    """The value if it is an object, else an empty one."""
    if isinstance(value, dict):
        return cast("Json", value)
    return {}


def list_of(value: Any) -> list[Any]:
    """The value if it is a list, else an empty one."""
    if isinstance(value, list):
        return cast("list[Any]", value)
    return []


def first_of(value: Any) -> Json:
    """The first object of a list of answers, of which only that is read; empty if there is none."""
    for item in list_of(value):
        return mapping(item)
    return {}


def text_of(value: Any) -> str | None:
    """The value if it is a non-empty string, else None."""
    if isinstance(value, str) and value:
        return value
    return None


def count_of(value: Any) -> int:
    """The value if it is a whole number above 0, else 0."""
    if type(value) is int and value > 0:  # True is an int, but not a count
        return value
    return 0


def cost_of(usage: Json) -> float | None:
    """The cost in US dollars that a provider reports with its token counts; None if there is none.

    OpenRouter, Perplexity and xAI do so (November 2026).
    """
    cost = usage.get("cost")
    for amount in (cost, mapping(cost).get("total_cost")):
        if isinstance(amount, bool) or not isinstance(amount, (int, float)):
            continue
        if 0 <= amount <= HIGHEST_COST:
            return float(amount)
    ticks = usage.get("cost_in_usd_ticks")
    if type(ticks) is int and 0 <= ticks <= HIGHEST_COST:
        return ticks / _TICKS
    return None


def tokens_of(entries: Any, *, name: str = "logprob") -> tuple[Token, ...]:
    """The tokens of an answer with their log-probabilities, which are in the field `name`.

    None of them if one cannot be read. Tokens that share a character become one.
    """
    tokens: list[Token] = []
    data = b""
    logprob = 0.0
    for entry in list_of(entries):
        fields = mapping(entry)
        value = fields.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not isfinite(value):
            return ()
        data += _bytes_of(fields)
        logprob += value
        with suppress(UnicodeDecodeError):
            tokens.append(Token(data.decode(), logprob))
            data, logprob = b"", 0.0
    return tuple(tokens)


def _bytes_of(token: Json) -> bytes:
    """The bytes of a token, of which a character may need several."""
    numbers = list_of(token.get("bytes"))
    if numbers:
        with suppress(TypeError, ValueError):
            return bytes(numbers)
    return str(token.get("token", "")).encode(errors="replace")


# -- requests


def take_confidence(settings: Json) -> bool:
    """Remove the setting `confidence`, and return whether it asks for log-probabilities."""
    wish = settings.pop("confidence", None)
    if wish is not None and not isinstance(wish, bool):
        raise ConfigurationError(f"`confidence` is True or False, found {shown(wish)}.")
    return bool(wish)


def refuse_settings(names: Iterable[str]) -> NoReturn:
    """Raise `ConfigurationError` for settings that are fields of a request."""
    refused = ", ".join(f"`{name}`" for name in sorted(names))
    raise ConfigurationError(
        f"{refused}: the program sets this, so it cannot be a setting. "
        "To force a field of the body, use `extra={...}`."
    )


def body_of(head: Json, extra: Json, parts: Mapping[str, bytes]) -> bytes:
    """The JSON of a request's body: plain fields, then parts that are JSON already, in order.

    `extra` is what the user adds: it overrides the rest, and each name is written once. Only its
    tools are added to those of the request: they are the provider's own, such as a search.
    """
    if isinstance(extra.get("tools"), list) and parts.get("tools"):
        others = [json_bytes(tool) for tool in list_of(extra["tools"])]
        declared = parts["tools"].removeprefix(b"[").removesuffix(b"]")
        parts = {**parts, "tools": b"[%b]" % b",".join([*others, declared])}
        extra = {name: value for name, value in extra.items() if name != "tools"}
    fields = [json_bytes({**head, **extra}).removeprefix(b"{").removesuffix(b"}")]
    for name, part in parts.items():
        if name not in extra and part:
            fields.append(b'"%b":%b' % (name.encode(), part))
    return b"{%b}" % b",".join(filter(None, fields))


def tools_over_time(
    request: Request, dialect: Dialect
) -> tuple[Declarations, Sequence[ToolChange]]:
    """The tools to declare, and the changes to send where they came.

    There are none if the server takes no such changes. A choice of one tool needs all tools
    declared. Where the server takes additions only, the tools are declared as they were after the
    last removal.
    """
    choice = request.tool_choice
    is_choice_of_one = choice is not None and choice not in ("auto", "none", "required")
    changes = request.tool_changes
    declared = request.first_tools
    if not dialect.tool_additions or is_choice_of_one or declared is None:
        return request.tools, ()
    if not dialect.tool_removals:
        for index, change in enumerate(request.tool_changes):
            if change.removed:
                changes = request.tool_changes[index + 1 :]
        for change in request.tool_changes[: len(request.tool_changes) - len(changes)]:
            declared = change.applied_to(declared)
    return declared, changes


def openai_function(function: Json) -> Json:
    """A function whose parameters have `type` and `properties`.

    Without them, OpenAI answers 400: "object schema missing properties".
    """
    parameters = function.get("parameters")
    if not isinstance(parameters, dict) or {"type", "properties"} <= parameters.keys():
        return function
    return {**function, "parameters": {"type": "object", "properties": {}, **parameters}}


def placeholder(part: Part, wire: str, place: str) -> str:
    """The text for a part that `wire` cannot carry in `place`, such as "tool results".

    Logs it once.
    """
    kind = type(part).__name__.lower()
    if (wire, kind, place) not in _logged:
        _logged.add((wire, kind, place))
        _log.warning(
            "%s: %s carry no %s; the model reads a note that one was left out", wire, place, kind
        )
    return f"[{part!r} was left out: it cannot be sent here]"
