"""Gemini's generateContent as pure functions: `Request` to body bytes, answer to `Response`.

The API of Google AI Studio, `v1beta`. A message's parts are rendered once; the results of one turn
share one content, as the API requires. Contents come last, so that each body begins with the
previous one, except for its end, and can be cached. Format: Gemini API reference, "Generating
content", as of November 2026.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic_core import from_json

from ferrule.encoding.encode import json_bytes
from ferrule.errors import ConfigurationError, MissingContentError, RefusalError, shown
from ferrule.models.providers import Dialect
from ferrule.models.wires.gemini.parts import (
    WIRE,
    content_parts,
    read_parts,
    result_parts,
    turn_parts,
)
from ferrule.models.wires.payload import (
    Json,
    count_of,
    list_of,
    mapping,
    no_answer,
    opened,
    refuse_settings,
    text_of,
)
from ferrule.net.errors import payload_error
from ferrule.schema.lowering.lower import lower_schema, lower_tools
from ferrule.values.calls.call import CallFault, ToolCall
from ferrule.values.conversation.exchange import Declarations, Request, Response, Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ferrule.values.conversation.message import Message, Messages

OURS = frozenset({
    "model", "contents", "messages", "systemInstruction", "tools", "toolConfig", "toolChoice", "parallelToolCalls",
    "responseMimeType", "responseSchema", "responseJsonSchema", "responseFormat", "stream", "streamOptions",
})  # fmt: skip
"""Fields of the body, here or in chat completions, that settings may not set, because the `Request` or the model does."""
_NAMES: Mapping[str, str] = {
    "max_tokens": "maxOutputTokens",
    "max_completion_tokens": "maxOutputTokens",
    "stop": "stopSequences",
}
"""Settings with a different name here; all others are converted from `snake_case` to `camelCase`."""
_BESIDE = frozenset(
    {"safetySettings", "cachedContent", "serviceTier", "labels", "store", "continuationToken"},
)
"""Settings outside `generationConfig`; all others go into it."""
_BUDGETS: Mapping[str, int] = {
    "none": 0,
    "minimal": 1024,
    "low": 1024,
    "medium": 8192,
    "high": 24576,
}
"""Reasoning efforts in tokens, for models before Gemini 3 ("OpenAI compatibility", section "Thinking", as of June 2026)."""
_SINCE_3 = re.compile(r"gemini-(?:[3-9]|[1-9][0-9]|(?:pro|flash)(?:-lite)?-latest)")
"""Models with thinking levels, signed calls, and media in results."""
_MODES: Mapping[str, str] = {"auto": "AUTO", "none": "NONE", "required": "ANY"}
_PLAIN = Dialect()


def path(model: str, *, stream: bool = False) -> str:
    """The path for a model, below a base URL; `models/x` and `tunedModels/x` are names too."""
    name = (
        model
        if "/" in model and model.partition("/")[0] in {"models", "tunedModels"}
        else f"models/{model}"
    )
    return f"/{quote(name, safe='/:@')}:{'streamGenerateContent?alt=sse' if stream else 'generateContent'}"


def headers(key: str | None) -> dict[str, str]:
    """The header that carries the key ("API keys", section "Provide the API key")."""
    return {} if key is None else {"x-goog-api-key": key}


def render(
    request: Request,
    *,
    model: str,
    settings: Mapping[str, Any],
    stream: bool = False,
    dialect: Dialect = _PLAIN,
) -> bytes:
    """The body of a request. Settings of the request override the model's `settings`; None omits a setting.

    `request.parallel` is not sent: the API cannot limit the model to one call at a time.
    """
    del stream  # the path already says so
    is_since_3 = _SINCE_3.search(model) is not None
    head = _head(request, {**settings, **request.settings}, dialect, is_since_3)
    tools: list[bytes] = [
        json_bytes(tool) for tool in list_of(head.pop("tools", None))
    ]  # from `extra`: search, code and others
    if request.tools:
        tools.append(_functions(request.tools))
    leading = _leading_system(request.messages)
    pieces = [json_bytes(head)[1:-1]] if head else []
    if tools:
        pieces.append(b'"tools":[' + b",".join(tools) + b"]")
    if leading and "systemInstruction" not in head:
        system = b",".join(
            [message.rendered(WIRE, _words) for message in request.messages[:leading]],
        )
        pieces.append(b'"systemInstruction":{"parts":[' + system + b"]}")
    if "contents" not in head:
        pieces.append(b'"contents":[' + _contents(request.messages, leading, is_since_3) + b"]")
    return b"{" + b",".join(pieces) + b"}"


def _head(request: Request, settings: Json, dialect: Dialect, is_since_3: bool) -> Json:
    extra: Json = settings.pop("extra", None) or {}
    if found := [name for name in settings if _camel(name) in OURS]:
        refuse_settings(found)
    head: Json = {}
    config: Json = {}
    for name, value in settings.items():
        if value is not None and name != "reasoning_effort":
            there = dialect.names.get(name) or _NAMES.get(name) or _camel(name)
            if there == "generationConfig":
                config.update(mapping(value))
            else:
                (head if there in _BESIDE else config)[there] = value
    if isinstance(config.get("stopSequences"), str):
        config["stopSequences"] = [config["stopSequences"]]
    effort = settings.get("reasoning_effort")
    if effort is not None:
        budget = None if is_since_3 else _BUDGETS.get(str(effort))
        thinking: Json = {"thinkingLevel": effort} if budget is None else {"thinkingBudget": budget}
        config["thinkingConfig"] = {**thinking, **mapping(config.get("thinkingConfig"))}
    if request.shape is not None:
        config["responseMimeType"] = "application/json"
        if request.shape.kind == "json_schema" and request.shape.schema is not None:
            config["responseJsonSchema"] = _lowered(json_bytes(request.shape.schema))
    if config:
        head["generationConfig"] = config
    if request.tools and request.tool_choice is not None:
        head["toolConfig"] = {"functionCallingConfig": _choice(request.tool_choice)}
    for name, value in extra.items():  # a `generationConfig` is merged with ours
        head[name] = (
            {**head[name], **value}
            if isinstance(head.get(name), dict) and isinstance(value, dict)
            else value
        )
    return head


def _camel(name: str) -> str:
    return re.sub("_([a-z0-9])", lambda found: found[1].upper(), name)


def _choice(choice: str | Mapping[str, Any]) -> Json:
    if isinstance(choice, str) and choice in _MODES:
        return {"mode": _MODES[choice]}
    if not isinstance(choice, str) and "mode" in choice:
        return dict(choice)  # in Gemini's own form
    name = (
        choice if isinstance(choice, str) else text_of(mapping(choice.get("function")).get("name"))
    )
    if not name:
        raise ConfigurationError(
            f'`tool_choice` is "auto", "none", "required" or names one tool, found {shown(choice)}.',
        )
    return {"mode": "ANY", "allowedFunctionNames": [name]}


@lru_cache(maxsize=64)
def _functions(tools: Declarations) -> bytes:
    """The declarations as one tool. Cached: declarations compare by their JSON."""
    made: list[Json] = []
    for tool in lower_tools(tools, "gemini").tools:
        function = tool["function"]
        schema = mapping(function.get("parameters"))
        found: Json = {"name": function["name"], "description": function.get("description") or ""}
        if schema.keys() - {"type"}:  # a function without arguments has no schema
            found["parametersJsonSchema"] = schema
        made.append(found)
    return json_bytes({"functionDeclarations": made})


@lru_cache(maxsize=64)
def _lowered(schema: bytes) -> Json:
    """The schema of an answer, lowered for Gemini. Shared; do not change it."""
    return lower_schema(from_json(schema), "gemini").schema


# -- messages
# ---------------------------------------------------------------------------------------------------

_OPENINGS: Mapping[str, bytes] = {
    role: b']},{"role":"%b","parts":[' % there
    for role, there in (
        ("user", b"user"),
        ("system", b"user"),
        ("tool", b"user"),
        ("assistant", b"model"),
    )
}


def _leading_system(messages: Messages) -> int:
    """How many messages form the system instruction: the first ones, but never all, because contents must not be empty."""
    count = 0
    while count < len(messages) - 1 and messages[count].role == "system":
        count += 1
    return count


def _contents(messages: Messages, start: int, is_since_3: bool) -> bytes:
    """The conversation as contents. A later system message becomes a user message in its place: the only roles are user and model."""
    wire = f"{WIRE}+3" if is_since_3 else WIRE
    pieces: list[bytes] = []
    before = None
    for index, message in enumerate(messages):
        if index < start:
            continue
        role = message.role
        if role == "assistant":
            parts = message.rendered(wire, _signed_turn if is_since_3 else _turn)
        elif role == "tool":
            name = message.name if message.name is not None else _name_of(messages, index)
            parts = message.rendered(
                f"{wire}:{name}",
                lambda it, name=name: _joined(result_parts(it, name=name, media=is_since_3)),
            )
        else:
            parts = message.rendered(WIRE, _words)
        pieces += (b"," if role == before and role != "user" else _OPENINGS[role], parts)
        before = role
    return b"".join(pieces)[len(b"]},") :] + b"]}"


def _name_of(messages: Messages, index: int) -> str | None:
    """The name of a result's tool, from the call it answers: the API requires it."""
    wanted = messages[index].tool_call_id
    for place in range(index - 1, -1, -1):
        for call in messages[place].tool_calls:
            if call.id == wanted:
                return call.name
    return None


def _joined(parts: list[Json]) -> bytes:
    return json_bytes(parts)[1:-1]


def _turn(message: Message) -> bytes:
    return _joined(turn_parts(message))


def _signed_turn(message: Message) -> bytes:
    return _joined(turn_parts(message, signed=True))


def _words(message: Message) -> bytes:
    return _joined(content_parts(message.content))


# -- answers
# ----------------------------------------------------------------------------------------------------

_REASONS: Mapping[str, str] = {
    "STOP": "stop",
    "MAX_TOKENS": "length",
    **dict.fromkeys(
        [
            "SAFETY",
            "RECITATION",
            "BLOCKLIST",
            "PROHIBITED_CONTENT",
            "SPII",
            "MODEL_ARMOR",
            "ESCALATION",
        ],
        "content_filter",
    ),
    **dict.fromkeys(
        ["IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"],
        "content_filter",
    ),
}
_BAD_CALLS = frozenset({"MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL"})


def read(payload: Json | bytes) -> Response:
    """The answer in a body.

    Raises `BadRequestError` if there is none, `MissingContentError` if it is empty, `RefusalError`
    if it was withheld.
    """
    body, raw = opened(payload)
    if body.get("error"):
        raise payload_error(body)
    candidate = mapping(
        next(iter(list_of(body.get("candidates"))), None),
    )  # only the first answer is read
    turn = read_parts(list_of(mapping(candidate.get("content")).get("parts")))
    calls = turn.calls
    word = finish_of(candidate)
    reason = _REASONS.get(word, word) if word else None
    if word in _BAD_CALLS and not calls:
        calls = (_bad_call(word, candidate),)
    if calls and (reason == "stop" or word in _BAD_CALLS):
        reason = "tool_calls"
    if not turn.text and not calls and reason not in {"stop", "length"}:
        raise _nothing(body, candidate, word)
    usage, model = _usage(mapping(body.get("usageMetadata"))), text_of(body.get("modelVersion"))
    return Response(
        turn.text,
        calls,
        turn.reasoning,
        reason,
        None,
        usage,
        model,
        None,
        turn.extra,
        raw,
    )


def finish_of(candidate: Json) -> str | None:
    """The provider's reason for the end of an answer; None while it continues."""
    word = text_of(candidate.get("finishReason"))
    return None if word == "FINISH_REASON_UNSPECIFIED" else word


def block_of(body: Json) -> str | None:
    """The provider's reason for blocking the prompt, or None."""
    return text_of(mapping(body.get("promptFeedback")).get("blockReason"))


def _nothing(body: Json, candidate: Json, word: str | None) -> MissingContentError | RefusalError:
    request_id = text_of(body.get("responseId"))
    said_of_it = text_of(candidate.get("finishMessage")) or text_of(
        mapping(body.get("promptFeedback")).get("blockReasonMessage"),
    )
    why = f": {said_of_it}" if said_of_it else ""
    if word is None and block_of(body) is not None:
        return RefusalError(
            f"the provider blocked the question ({block_of(body)}){why}",
            request_id=request_id,
            raw=body,
        )
    if word is not None and _REASONS.get(word) == "content_filter":
        return RefusalError(
            f"the provider withheld the answer ({word}){why}",
            request_id=request_id,
        )
    if word is not None:
        return MissingContentError(
            f"the provider gave up before any answer ({word}){why}",
            request_id=request_id,
        )
    found = "a candidate without content" if candidate else "no candidates"
    return MissingContentError(no_answer(found, body), request_id=request_id, raw=body)


def _bad_call(word: str, candidate: Json) -> ToolCall:
    """A call with a fault, for one that the provider could not read, with its message: the model can correct it."""
    reason = f"the provider could not read the call ({word})"
    return ToolCall(
        name="",
        fault=CallFault(
            "invalid_tool_call",
            reason,
            text_of(candidate.get("finishMessage")) or "",
            0,
        ),
    )


def _usage(usage: Json) -> Usage:
    """Token counts. `promptTokenCount` includes cached tokens; thoughts and results of the provider's tools are counted separately."""
    return Usage(
        count_of(usage.get("promptTokenCount")) + count_of(usage.get("toolUsePromptTokenCount")),
        count_of(usage.get("candidatesTokenCount")) + count_of(usage.get("thoughtsTokenCount")),
        count_of(usage.get("cachedContentTokenCount")),
        1,
        count_of(usage.get("thoughtsTokenCount")),
    )
