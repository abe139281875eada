"""Gemini's requests, read, and answers written in its form: the other side of `gemini`.

For `ferrule.testing.serve`, which answers real clients. Raises `InputError` with the place.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ferrule.encoding.encode import json_text
from ferrule.errors import InputError, shown
from ferrule.models.wires.gemini.decode import present, read_parts
from ferrule.models.wires.gemini.encode import UNSIGNED, turn_parts
from ferrule.models.wires.payload import Json, list_of, mapping, text_of
from ferrule.net.sse import event
from ferrule.testing.server import openai_chat
from ferrule.testing.server.openai_chat import Received
from ferrule.values.content.parts import Audio, File, Image, Text
from ferrule.values.conversation.exchange import (
    NO_TOOLS,
    Declarations,
    Delta,
    Request,
    Response,
    Shape,
)
from ferrule.values.conversation.message import Message, Messages

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ferrule.errors import FerruleError
    from ferrule.values.calls.call import ToolCall
    from ferrule.values.content.parts import Content
    from ferrule.values.content.parts import Part as ContentPart
    from ferrule.values.conversation.exchange import Usage

_READ = frozenset(
    {"model", "contents", "tools", "toolConfig", "systemInstruction", "generationConfig"},
)
_SHAPE = frozenset({"responseMimeType", "responseSchema", "responseJsonSchema"})
_NAMES = {"maxOutputTokens": "max_tokens", "stopSequences": "stop"}
_CHOICES = {"AUTO": "auto", "VALIDATED": "auto", "NONE": "none", "ANY": "required"}
_DECLARED = frozenset({"functionDeclarations"})
_MEDIA = frozenset({"inlineData", "fileData"})


# -- requests


def receive(body: Json, path: str) -> Received:
    """The request in a body; the path names the model and says whether the answer is streamed."""
    route, _, method = path.partition("?")[0].rpartition(":")
    _, found, name = route.rpartition("/models/")
    model = unquote(name if found else route.rpartition("/")[2])
    fields = _fields(body)
    config = _fields(fields.get("generationConfig"))
    settings = {
        _NAMES.get(key) or _snake(key): value for key, value in config.items() if key not in _SHAPE
    }
    settings |= {_snake(key): value for key, value in fields.items() if key not in _READ}
    request = Request(
        _Conversation().read(fields),
        _tools(fields.get("tools")),
        _choice(fields.get("toolConfig")),
        None,
        _shape(config),
        settings,
    )
    return Received(request, model or None, method == "streamGenerateContent")


class _Conversation:
    """Contents, read in their order: a result without an id is of the first call of its name that
    has none yet.
    """

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._made = 0
        self._open: list[ToolCall] = []

    def read(self, fields: Json) -> Messages:
        """The messages of a body."""
        contents = list_of(fields.get("contents"))
        if not contents:
            msg = "`contents` is a list of contents and not empty"
            raise InputError(msg)
        system = (
            _parts(fields.get("systemInstruction"), "systemInstruction")
            if fields.get("systemInstruction")
            else []
        )
        self._messages += [
            Message("system", part["text"]) for part in system if isinstance(part.get("text"), str)
        ]
        for index, content in enumerate(contents):
            place = f"contents[{index}]"
            parts = _parts(content, place)
            match mapping(content).get("role"):
                case "model":
                    self._take_turn(parts)
                case "user" | "function" | "tool" | None:
                    self._take_words(parts, place)
                case role:
                    msg = f"{place} has the role {shown(role)}; roles are user and model"
                    raise InputError(msg)
        return Messages(self._messages)

    def _take_turn(self, parts: list[Json]) -> None:
        signed = [
            {key: value for key, value in part.items() if value != UNSIGNED} for part in parts
        ]
        turn = read_parts(signed)
        calls = tuple([call if call.id else call.with_id(self._next_id()) for call in turn.calls])
        self._open += calls
        self._messages.append(
            Message(
                "assistant",
                turn.text or "",
                calls,
                reasoning=turn.reasoning or "",
                extra=turn.extra,
            ),
        )

    def _take_words(self, parts: list[Json], place: str) -> None:
        words: list[Json] = []
        for index, part in enumerate(parts):
            if "functionResponse" in part:
                self._say(words, place)
                words = []
                self._take_result(mapping(part["functionResponse"]), f"{place}.parts[{index}]")
            else:
                words.append(part)
        self._say(words, place)

    def _say(self, words: list[Json], place: str) -> None:
        if words:
            try:
                self._messages.append(Message("user", content_of(words)))
            except (KeyError, ValueError) as error:
                msg = f"{place}: no such part of content, or an incomplete one: {shown(words)}"
                raise InputError(msg) from error

    def _take_result(self, result: Json, place: str) -> None:
        name, call_id = text_of(result.get("name")), text_of(result.get("id"))
        call = next(
            (call for call in self._open if (call.id == call_id if call_id else call.name == name)),
            None,
        )
        if call is not None:
            self._open.remove(call)
            call_id = call_id or call.id
        if name is None or call_id is None:
            msg = f"{place} answers no call: {shown(result)}"
            raise InputError(msg)
        response = mapping(result.get("response"))
        is_error = "error" in response and "output" not in response
        # Without either key the whole is the output (`FunctionResponse.response`).
        value: Any = response.get("error" if is_error else "output", response)
        text = value if isinstance(value, str) else json_text(value)
        media = [_part(part) for part in list_of(result.get("parts"))]
        try:
            content = content_of([*([{"text": text}] if text or not media else []), *media])
        except (KeyError, ValueError) as error:
            msg = f"{place}: an incomplete part of a result: {shown(media)}"
            raise InputError(msg) from error
        self._messages.append(
            Message("tool", content, tool_call_id=call_id, name=name, is_error=is_error),
        )

    def _next_id(self) -> str:
        self._made += 1
        return f"call_{self._made}"


def _parts(content: Any, place: str) -> list[Json]:
    parts = mapping(content).get("parts")
    if not isinstance(parts, list):
        msg = f"{place} has no list of `parts`: {shown(content)}"
        raise InputError(msg)
    return [_part(part) for part in list_of(parts)]


def _part(part: Any) -> Json:
    return {
        key: _fields(value) if key in _MEDIA else value
        for key, value in _fields(present(part)).items()
    }


def content_of(parts: list[Json]) -> Content:
    """Text and media parts as content; raises `KeyError` or `ValueError` for other parts."""
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    if len(texts) == len(parts) <= 1:
        return texts[0] if texts else ""
    return tuple([_content_part(part) for part in parts])


def _content_part(part: Json) -> ContentPart:
    if isinstance(part.get("text"), str):
        return Text(text=part["text"])
    blob = mapping(part.get("inlineData")) or mapping(part["fileData"])
    kind = text_of(blob.get("mimeType")) or "application/octet-stream"
    source: dict[str, str] = {"data": blob["data"]} if "data" in blob else {"url": blob["fileUri"]}
    family = kind.partition("/")[0]
    if family == "image":
        return Image(**source, media_type=kind)
    if family == "audio":
        return Audio(**source, media_type=kind)
    return File(**source, media_type=kind)


def _tools(tools: Any) -> Declarations:
    if not tools:
        return NO_TOOLS
    declared: list[Json] = []
    for place, tool in enumerate(list_of(tools)):
        fields = _fields(tool)
        if fields.keys() != _DECLARED:
            msg = f"tools[{place}] is no tool of functions, and there are no others here: {shown(tool)}"
            raise InputError(msg)
        for function in map(_fields, list_of(fields["functionDeclarations"])):
            name = text_of(function.get("name"))
            if name is None:
                msg = f"tools[{place}] declares a function without a name: {shown(function)}"
                raise InputError(msg)
            schema = (
                function.get("parametersJsonSchema")
                or _json_schema(function.get("parameters"))
                or {"type": "object", "properties": {}}
            )
            found: Json = {
                "name": name,
                "description": text_of(function.get("description")) or "",
                "parameters": schema,
            }
            declared.append({"type": "function", "function": found})
    return Declarations(declared)


def _json_schema(schema: Any) -> Json:
    """OpenAPI's words as JSON Schema has them: types in small letters, null among the types."""
    made = dict(mapping(schema))
    kind = made.get("type")
    if isinstance(kind, str):
        made["type"] = (
            [kind.lower(), "null"] if made.pop("nullable", False) is True else kind.lower()
        )
    if "properties" in made:
        made["properties"] = {
            name: _json_schema(each) for name, each in mapping(made["properties"]).items()
        }
    if "items" in made:
        made["items"] = _json_schema(made["items"])
    if "anyOf" in made:
        made["anyOf"] = [_json_schema(each) for each in list_of(made["anyOf"])]
    return made


def _choice(config: Any) -> str | None:
    calling = _fields(_fields(config).get("functionCallingConfig"))
    mode = text_of(calling.get("mode"))
    names = list_of(calling.get("allowedFunctionNames"))
    if mode == "ANY" and len(names) == 1 and isinstance(names[0], str):
        return names[0]
    return _CHOICES.get(mode or "")


def _shape(config: Json) -> Shape | None:
    if config.get("responseMimeType") != "application/json":
        return None
    schema = mapping(config.get("responseJsonSchema")) or _json_schema(config.get("responseSchema"))
    return Shape("json_schema", schema) if schema else Shape("json_object")


def _fields(value: Any) -> Json:
    """An object with its fields in the API's own spelling: it takes `snake_case` too, and its own
    client sends some of that.
    """
    return {
        re.sub("_([a-z0-9])", lambda found: found[1].upper(), key): each
        for key, each in mapping(value).items()
    }


def _snake(name: str) -> str:
    return re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", name)


# -- answers

_REASONS = {
    "stop": "STOP",
    "tool_calls": "STOP",
    "length": "MAX_TOKENS",
    "content_filter": "SAFETY",
}
_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}


def answer(response: Response, *, model: str) -> Json:
    """A whole answer."""
    parts = _answer_parts(response)
    if response.reasoning and not any(part.get("thought") for part in parts):
        parts.insert(0, {"text": response.reasoning, "thought": True})
    return _body(parts, model, response)


def events(
    items: Iterable[Delta | Response],
    *,
    model: str,
    with_usage: bool = False,
) -> Iterator[bytes]:
    """A stream as server-sent events; calls come whole, as they do from Gemini, and token counts
    unasked.
    """
    del with_usage
    for item in items:
        if isinstance(item, Delta):
            pieces: list[Json] = (
                [{"text": item.reasoning, "thought": True}] if item.reasoning else []
            )
            pieces += [{"text": item.text}] if item.text else []
            yield event(_body(pieces, model))
            continue
        for part in _answer_parts(item):
            if not part.keys() <= {"text", "thought"}:  # the text itself is out
                yield event(_body([{**part, "text": ""} if "text" in part else part], model))
        yield event(_body([], model, item))


def error_body(error: FerruleError) -> tuple[int, Json]:
    """The status and the body for a model error or a bad request.

    `type` is not Gemini's: it names what the status cannot.
    """
    status, body = openai_chat.error_body(error)
    told = body["error"]
    return status, {
        "error": {
            "code": status,
            "message": told["message"],
            "status": _STATUSES.get(status, "UNKNOWN"),
            "type": told["code"],
        },
    }


def error_event(body: Json) -> bytes:
    """An error in the midst of a stream."""
    return event(body)


def _answer_parts(response: Response) -> list[Json]:
    parts = (
        turn_parts(response.message())
        if response.text or response.tool_calls or response.extra
        else []
    )
    calls = iter(response.tool_calls)
    for part in parts:
        if "functionCall" in part:
            call = next(calls)
            # Arguments that were no object go out as they were: a client must see what the model
            # did.
            part["functionCall"] |= {
                "name": call.name,
                "args": call.args if call.fault is None else call.fault.raw,
            }
    return parts


def _body(parts: list[Json], model: str, response: Response | None = None) -> Json:
    candidate: Json = {"content": {"role": "model", "parts": parts}, "index": 0}
    body: Json = {"candidates": [candidate], "modelVersion": model, "responseId": "ferrule"}
    if response is not None:
        reason = (
            "content_filter" if response.refusal and not response.text else response.finish_reason
        )
        candidate["finishReason"] = _REASONS.get(reason, reason) if reason else "STOP"
        if response.refusal:
            candidate["finishMessage"] = response.refusal
        body["usageMetadata"] = _usage(response.usage)
    return body


def _usage(usage: Usage) -> Json:
    return {
        "promptTokenCount": usage.input_tokens,
        "candidatesTokenCount": usage.output_tokens,
        "totalTokenCount": usage.total_tokens,
        "cachedContentTokenCount": usage.cached_tokens,
    }
