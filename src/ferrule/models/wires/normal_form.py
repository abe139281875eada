"""Any provider's answer in one form: text, tool calls, and the answer itself as `raw`.

In: a body as JSON, the objects of a provider's own client, a bare message, or text. Out: a `Response`. For models that users write, and for
answers from elsewhere; the wires read what came over their own protocol themselves. Which protocol it is shows in the names of its fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from ferrule.errors import MissingContentError, shown
from ferrule.models.wires.wire import wire
from ferrule.values.conversation.exchange import Response
from ferrule.values.encoding.encode import jsonable

_SIGNS = {"choices": "openai_chat", "candidates": "gemini", "promptFeedback": "gemini", "output": "openai_responses"}
_OF_MESSAGES = ("content", "tool_calls", "function_call")


def response_of(answer: Any) -> Response:
    """The answer as a `Response`. Raises `MissingContentError` for what is no answer, or one without anything in it (E24)."""
    if isinstance(answer, Response):
        return answer
    if isinstance(answer, str):
        return Response(answer, raw=answer)
    body = body_of(answer)
    if not body:
        msg = f"this is no answer of a model: {shown(answer)}"
        raise MissingContentError(msg, raw=answer)
    name = next((name for sign, name in _SIGNS.items() if sign in body), None)
    if name is None and isinstance(body.get("content"), list) and not any(key in body for key in _OF_MESSAGES[1:]):
        name = "anthropic"
    if name is None and any(key in body for key in _OF_MESSAGES):
        name, body = "openai_chat", {"choices": [{"message": body}]}
    try:
        return wire(name or "openai_chat").read(body)
    except MissingContentError as error:
        error.raw = answer
        raise


def is_answer(thing: Any) -> bool:
    """Whether a thing looks like an answer in a provider's form: it has one of the fields that such answers have."""
    fields = (*_SIGNS, *_OF_MESSAGES)
    return any(name in thing for name in fields) if isinstance(thing, Mapping) else any(hasattr(thing, name) for name in fields)


def body_of(answer: Any) -> dict[str, Any]:
    """JSON of an answer: pydantic models, objects with attributes, mappings; empty for anything else."""
    if callable(dump := getattr(answer, "model_dump", None)):
        # What is unset was not sent. Clients put more into their unions than they declare, which pydantic would warn about.
        return cast("dict[str, Any]", dump(mode="json", exclude_unset=True, warnings=False))
    found = _plain(answer)
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in cast("Mapping[Any, Any]", value).items()}
    if hasattr(value, "__dict__") and not isinstance(value, type):
        return {name: _plain(each) for name, each in cast("dict[str, Any]", vars(value)).items() if not name.startswith("_")}
    return jsonable(value)
