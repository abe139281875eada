"""Reads an answer of any provider: its protocol is recognised by the names of its fields."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from ferrule.encoding.encode import jsonable
from ferrule.errors import MissingContentError, shown
from ferrule.models.wires.wire import wire
from ferrule.values.conversation.exchange import Response

if TYPE_CHECKING:
    from collections.abc import Callable

_SIGNS = {
    "choices": "openai_chat",
    "candidates": "gemini",
    "promptFeedback": "gemini",
    "output": "openai_responses",
}
"""Fields of bodies, and the protocol that has each."""
_CALLS = ("tool_calls", "function_call")
"""Fields of a bare message of chat completions with calls."""


def response_of(answer: Any) -> Response:
    """Read a `Response` from an answer.

    An answer is the JSON of a body, an object of a provider's client, a bare message, or text.
    Raises `MissingContentError` for anything else, and for an empty answer.
    """
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, str):
        return Response(answer, body=answer)
    body = body_of(answer)
    if not body:
        raise MissingContentError(f"this is not a model's answer: {shown(answer)}", raw=answer)
    name = _protocol_of(body)
    if name is None:
        name = "openai_chat"
        if _is_message(body):
            body = {"choices": [{"message": body}]}
    try:
        return wire(name).read(body)
    except MissingContentError as error:
        error.raw = answer
        raise


def is_answer(value: Any) -> bool:
    """Whether an object has a field of an answer in some provider's form."""
    fields = (*_SIGNS, "content", *_CALLS)
    if isinstance(value, Mapping):
        return any(field in value for field in fields)
    return any(hasattr(value, field) for field in fields)


def body_of(answer: Any) -> dict[str, Any]:
    """The JSON of an answer: a pydantic model, an object with attributes, or a mapping.

    Empty for anything else.
    """
    dump: Callable[..., Any] | None = getattr(answer, "model_dump", None)
    if callable(dump):
        # Unset fields were not sent. Clients put undeclared types into their unions, about which
        # pydantic would warn.
        return dump(mode="json", exclude_unset=True, warnings=False)
    body = _as_json(answer)
    if isinstance(body, dict):
        return cast("dict[str, Any]", body)
    return {}


def _protocol_of(body: dict[str, Any]) -> str | None:
    for sign, name in _SIGNS.items():
        if sign in body:
            return name
    has_calls = any(field in body for field in _CALLS)
    if isinstance(body.get("content"), list) and not has_calls:
        return "anthropic"
    return None


def _is_message(body: dict[str, Any]) -> bool:
    return any(field in body for field in ("content", *_CALLS))


def _as_json(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_as_json(item) for item in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        fields = cast("Mapping[Any, Any]", value)
        return {str(name): _as_json(item) for name, item in fields.items()}
    if hasattr(value, "__dict__") and not isinstance(value, type):
        attributes = cast("dict[str, Any]", vars(value))
        return {
            name: _as_json(item) for name, item in attributes.items() if not name.startswith("_")
        }
    return jsonable(value)
