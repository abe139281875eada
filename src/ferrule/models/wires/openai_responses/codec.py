"""OpenAI's Responses API as pure functions: `Request` to body bytes, answer to `Response`.

The provider stores nothing: `store` is false, each request holds the whole conversation, and
reasoning comes encrypted and is sent back (unless settings say otherwise). A message becomes one or
more items, rendered once. Items come last, so that each body begins with the previous one, except
for its end, and providers can cache it. Format: OpenAI's API reference, "Create a model response",
as of November 2026.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_bytes
from ferrule.errors import LMError, MissingContentError, RefusalError
from ferrule.models.providers import Dialect
from ferrule.models.wires.payload import (
    Json,
    cost_of,
    count_of,
    list_of,
    mapping,
    no_answer,
    openai_function,
    opened,
    placeholder,
    refuse_settings,
    text_of,
)
from ferrule.net.errors import payload_error
from ferrule.values.calls.call import call_at
from ferrule.values.conversation.exchange import Declarations, Request, Response, Shape, Usage
from ferrule.values.conversation.message import safe_id, safe_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ferrule.values.calls.call import ToolCall
    from ferrule.values.content.parts import Content, Part
    from ferrule.values.conversation.message import Message

WIRE = "openai_responses"
OURS = frozenset({
    "model", "input", "messages", "previous_response_id", "conversation",
    "tools", "tool_choice", "parallel_tool_calls", "response_format", "stream",
})  # fmt: skip
"""Fields of the body, here or in chat completions, that settings may not set, because the `Request` or the model does."""
_INCLUDED = ["reasoning.encrypted_content"]
_THOUGHTLESS = re.compile(r"gpt-[34]|chatgpt|-chat-")
"""Models without reasoning: they refuse requests for it (pydantic-ai, issues 2865 and 3326)."""
_PLACES: Mapping[str, tuple[str, str]] = {
    "max_tokens": ("max_output_tokens", ""),
    "max_completion_tokens": ("max_output_tokens", ""),
    "reasoning_effort": ("reasoning", "effort"),
    "verbosity": ("text", "verbosity"),
}
"""Settings with a different name here: the field, and the key in it."""
_LONGEST_ID = 64
"""The longest id of a call: "string too long. Expected a string with maximum length 64" (openclaw, pull request 137489)."""
_PLAIN = Dialect()


def path(model: str, *, stream: bool = False) -> str:
    """The path of the endpoint, below a base URL."""
    del model, stream
    return "/responses"


def headers(key: str | None) -> dict[str, str]:
    """The header that carries the key (RFC 6750)."""
    return {} if key is None else {"authorization": f"Bearer {key}"}


def render(
    request: Request,
    *,
    model: str,
    settings: Mapping[str, Any],
    stream: bool = False,
    dialect: Dialect = _PLAIN,
) -> bytes:
    """The body of a request. Settings of the request override the model's `settings`; None omits a setting."""
    del dialect  # only for chat completions
    head = json_bytes(_head(request, model, (settings, request.settings), stream))
    tools = b',"tools":' + _tools(request.tools) if request.tools else b""
    items = request.messages.joined(
        WIRE,
        lambda added: [message.rendered(WIRE, _rendered) for message in added],
    )
    return b"".join((head[:-1], tools, b',"input":[', items, b"]}"))


def _head(
    request: Request,
    model: str,
    layers: tuple[Mapping[str, Any], ...],
    stream: bool,
) -> Json:
    head: Json = {
        "model": model,
        "store": False,
        **({} if _THOUGHTLESS.search(model) else {"include": _INCLUDED}),
    }
    extra: Json = {}
    for settings in layers:
        if found := OURS.intersection(settings):
            refuse_settings(found)
        for name, value in settings.items():
            if name == "extra":
                extra = value or {}
            else:
                _put(head, *_PLACES.get(name, (name, "")), value)
    if request.tool_choice is not None and request.tools:
        head["tool_choice"] = _choice(request.tool_choice)
    if request.parallel is not None and request.tools:
        head["parallel_tool_calls"] = request.parallel
    if request.shape is not None:
        _put(head, "text", "format", _format(request.shape))
    if stream:
        head["stream"] = True
    head.update(extra)
    return head


def _put(head: Json, name: str, key: str, value: Any) -> None:
    """Set a field, or one key of it; None removes it."""
    within = mapping(head.get(name))
    if key:
        value = (
            {**within, key: value}
            if value is not None
            else {each: within[each] for each in within if each != key} or None
        )
    elif within and isinstance(value, dict):
        value = {**within, **mapping(value)}
    if value is None:
        head.pop(name, None)
    else:
        head[name] = value


def _choice(choice: str | Mapping[str, Any]) -> Any:
    if isinstance(choice, str):
        return (
            choice
            if choice in {"auto", "none", "required"}
            else {"type": "function", "name": choice}
        )
    function = choice.get("function")
    return {"type": "function", "name": mapping(function).get("name")} if function else choice


def _format(shape: Shape) -> Json:
    if shape.kind == "json_object" or shape.schema is None:
        return {"type": "json_object"}
    return {"type": "json_schema", "name": shape.name, "schema": shape.schema, "strict": False}


@lru_cache(maxsize=64)
def _tools(declarations: Declarations) -> bytes:
    # Without `strict`, OpenAI makes the schema strict, and so every optional argument required
    # (guide "Function calling").
    return json_bytes(
        [
            {"type": "function", "strict": False, **openai_function(declaration["function"])}
            for declaration in declarations
        ],
    )


# -- messages
# ---------------------------------------------------------------------------------------------------


def _rendered(message: Message) -> bytes:
    return b",".join([json_bytes(item) for item in _items(message)])


def _items(message: Message) -> list[Json]:
    """A message as one or more items of this protocol. Their type is optional at OpenAI, but llama.cpp requires it."""
    if message.role == "tool":
        head = {"type": "function_call_output"} | _id(message.tool_call_id)
        return [{**head, "output": _content(message.content, "tool results")}]
    if message.role != "assistant":
        return [
            {
                "type": "message",
                "role": message.role,
                "content": _content(message.content, "messages"),
            },
        ]
    kept = _kept_items(message)
    if kept:
        return kept
    text = message.content if isinstance(message.content, str) else _in_words(message.content)
    said: list[Json] = (
        [{"type": "message", "role": "assistant", "content": text}]
        if text or not message.tool_calls
        else []
    )
    return [*said, *map(call_item, message.tool_calls)]


def call_item(call: ToolCall) -> Json:
    """A call as an item."""
    return {
        "type": "function_call",
        "name": safe_name(call.name),
        "arguments": call.arguments_text,
        **_id(call.id),
    }


def _id(call_id: str | None) -> Json:
    return {} if call_id is None else {"call_id": safe_id(call_id, _LONGEST_ID)}


def _content(content: Content, place: str) -> str | list[Json]:
    return content if isinstance(content, str) else [_part(part, place) for part in content]


def _part(part: Part, place: str) -> Json:
    from ferrule.values.content.parts import File, Image, Text

    match part:
        case Image():
            return {"type": "input_image", "detail": "auto", "image_url": part.address}
        case File() if part.url is not None:
            return {"type": "input_file", "file_url": part.url}
        case File():
            return {"type": "input_file", "filename": part.name, "file_data": part.address}
        case _:
            return {
                "type": "input_text",
                "text": part.text if isinstance(part, Text) else placeholder(part, WIRE, place),
            }


def _in_words(parts: Iterable[Part]) -> str:
    from ferrule.values.content.parts import Text

    return "\n".join(
        [
            part.text if isinstance(part, Text) else placeholder(part, WIRE, "answers")
            for part in parts
        ],
    )


def _kept_items(message: Message) -> list[Json]:
    """The original items of the answer, if the message still has the same text and as many calls; otherwise none."""
    kept = [
        mapping(item) for item in list_of(mapping((message.extra or {}).get(WIRE)).get("output"))
    ]
    calls = [item for item in kept if item.get("type") == "function_call"]
    if (
        not kept
        or len(calls) != len(message.tool_calls)
        or (text_in(kept)[0] or "") != message.text
    ):
        return []  # for example, a program dropped calls: reasoning without the item after it is refused
    own = iter(message.tool_calls)
    return [
        _kept_call(item, next(own)) if item.get("type") == "function_call" else _with_list(item)
        for item in kept
    ]


def _with_list(item: Json) -> Json:
    """A reasoning item with a `content` list, even an empty one: it is optional at OpenAI, but other servers require it."""
    return (
        {**item, "content": []}
        if item.get("type") == "reasoning" and "content" not in item
        else item
    )


def _kept_call(item: Json, call: ToolCall) -> Json:
    """A call with the id of its result; its arguments are the model's exact text if they still mean the same."""
    made = call_item(call)
    is_same = call_at(item, 0).args == call.args and isinstance(item.get("arguments"), str)
    return {**item, **made, "arguments": item["arguments"] if is_same else made["arguments"]}


# -- answers
# ----------------------------------------------------------------------------------------------------


def read(payload: Json | bytes) -> Response:
    """The answer in a body.

    Raises `BadRequestError` if there is none, `MissingContentError` if it is empty, `RefusalError`
    if it was withheld.
    """
    body, raw = opened(payload)
    if body.get("error") or body.get("status") == "failed":
        raise error_of(body.get("error") or "the answer failed, and the provider says no more")
    items = [item for each in list_of(body.get("output")) if (item := mapping(each))]
    status = text_of(body.get("status")) or "completed"
    if not items and status != "incomplete":
        raise MissingContentError(
            no_answer(f"no output (its status is {status!r})", body),
            request_id=text_of(body.get("id")),
            raw=body,
        )
    text, refusal = text_in(items)
    calls = calls_in(items)
    reason = _reason(status, body, is_calling=bool(calls))
    if reason == "content_filter" and not text and not calls and not refusal:
        raise RefusalError(
            "the provider's content filter withheld the answer",
            request_id=text_of(body.get("id")),
        )
    counts, extra = mapping(body.get("usage")), extra_of(items, is_stored=body.get("store") is True)
    model = text_of(body.get("model"))
    return Response(
        text,
        calls,
        reasoning_in(items),
        reason,
        refusal,
        _usage(counts),
        model,
        cost_of(counts),
        extra,
        raw,
    )


def error_of(error: Any) -> LMError:
    """The error in a body with a success status, or in an event of a stream."""
    code = text_of(mapping(error).get("code")) or ""
    if (
        "policy" in code
    ):  # bio_policy, misalignment_policy_violation, image_content_policy_violation
        error = {**error, "type": "content_policy_violation"}
    elif "image" in code:  # empty_image_file, image_too_large, ...: a retry does not help
        error = {**error, "status": 400}
    return payload_error({"error": error})


def text_in(items: Iterable[Json]) -> tuple[str | None, str | None]:
    """The text and the refusal in the items of an answer; None for one that is missing."""
    parts = [
        part
        for item in items
        if item.get("type") == "message"
        for part in _parts(item.get("content"))
    ]
    texts = [part.get("text") for part in parts if part.get("type") in ("output_text", "text")]
    refusals = [part.get("refusal") for part in parts if part.get("type") == "refusal"]
    return _joined(texts), _joined(refusals) or None


def _parts(content: Any) -> list[Json]:
    return (
        [{"type": "output_text", "text": content}]
        if isinstance(content, str)
        else [mapping(part) for part in list_of(content)]
    )


def _joined(pieces: list[Any]) -> str | None:
    texts = [piece for piece in pieces if isinstance(piece, str)]
    return "".join(texts) if texts else None


def calls_in(items: Iterable[Json]) -> tuple[ToolCall, ...]:
    """The calls among items of an answer."""
    return tuple(
        [
            call_at(item, index)
            for index, item in enumerate(
                each for each in items if each.get("type") == "function_call"
            )
        ],
    )


def reasoning_in(items: Iterable[Json]) -> str | None:
    """The reasoning in the items of an answer: summaries (OpenAI), or the full text (models with open weights)."""
    thoughts = [item for item in items if item.get("type") == "reasoning"]
    pieces = [
        mapping(part).get("text")
        for item in thoughts
        for key in ("summary", "content")
        for part in list_of(item.get(key))
    ]
    return "\n\n".join([piece for piece in pieces if isinstance(piece, str) and piece]) or None


def _reason(status: str, body: Json, *, is_calling: bool) -> str:
    if status == "completed":
        return "tool_calls" if is_calling else "stop"
    if status != "incomplete":
        return status
    reason = text_of(mapping(body.get("incomplete_details")).get("reason")) or status
    return "length" if reason == "max_output_tokens" else reason


def _usage(usage: Json) -> Usage:
    # Input tokens include cache reads and writes; output tokens include reasoning.
    details = mapping(usage.get("input_tokens_details"))
    return Usage(
        count_of(usage.get("input_tokens")),
        count_of(usage.get("output_tokens")),
        count_of(details.get("cached_tokens")),
        1,
        count_of(mapping(usage.get("output_tokens_details")).get("reasoning_tokens")),
        count_of(details.get("cache_write_tokens")),
    )


_PLAIN_ITEMS: Mapping[str, frozenset[str]] = {
    "message": frozenset({"type", "id", "role", "status", "content"}),
    "function_call": frozenset({"type", "id", "status", "name", "arguments", "call_id"}),
}
"""Items that a `Message` can express, if they have no further fields such as `phase`."""


def extra_of(items: Iterable[Json], *, is_stored: bool) -> Json | None:
    """The items to send back with the message: all of the answer, in order, if a `Message` cannot express one of them.

    Reasoning that is neither encrypted nor open can only be sent by its id, which a provider knows
    only if it stored the answer. Reasoning at the end, as in an answer that was cut off, is left
    out: the provider refuses it.
    """
    kept = [
        item
        for item in items
        if item.get("type") != "reasoning"
        or item.get("encrypted_content")
        or item.get("content")
        or is_stored
    ]
    while kept and kept[-1].get("type") == "reasoning":
        del kept[-1]
    is_plain = all(
        set(item) <= _PLAIN_ITEMS.get(str(item.get("type")), frozenset()) for item in kept
    )
    return None if is_plain else {WIRE: {"output": kept}}
