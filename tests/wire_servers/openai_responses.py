"""OpenAI's responses, the answering side: requests read, answers written whole and as streams.

For `ferrule.testing.serve`. It keeps nothing: a request that goes on from a stored answer is
refused. A request is brought into the form of chat completions, which `openai_request` reads.
Raises `InputError` with the place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from ferrule.errors import InputError, shown
from ferrule.models.wires.openai_chat.read_request import read_message, read_request
from ferrule.models.wires.openai_responses.decode import (
    WIRE,
    calls_in,
    extra_of,
    reasoning_in,
    text_in,
)
from ferrule.models.wires.openai_responses.encode import OURS, call_item
from ferrule.models.wires.payload import Json, list_of, mapping, text_of
from ferrule.net.sse import event
from ferrule.testing.server import openai_chat
from ferrule.testing.server.openai_chat import Received
from ferrule.values.conversation.exchange import Delta, Response
from ferrule.values.conversation.message import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ferrule.errors import FerruleError
    from ferrule.values.conversation.exchange import Usage

_FIELDS = OURS | {
    "instructions",
    "text",
    "reasoning",
    "max_output_tokens",
    "store",
    "include",
    "stream_options",
}
_KINDS = ("message", "reasoning", "function_call", "function_call_output")


def receive(body: Json, path: str) -> Received:
    """The request in a body."""
    del path
    for name in ("previous_response_id", "conversation"):
        if body.get(name) is not None:
            raise InputError(
                f"`{name}`: this server keeps no answers; send the whole conversation as `input`",
            )
    body = _with_added_tools(body)
    text, reasoning = mapping(body.get("text")), mapping(body.get("reasoning"))
    said = {
        "max_tokens": body.get("max_output_tokens"),
        "verbosity": text.get("verbosity"),
        "reasoning_effort": reasoning.get("effort"),
    }
    chat: Json = {
        **{name: value for name, value in body.items() if name not in _FIELDS},
        **{name: value for name, value in said.items() if value is not None},
        "messages": _messages(body),
        "tools": [_tool(tool, place) for place, tool in enumerate(list_of(body.get("tools")))],
        "tool_choice": _choice(body.get("tool_choice")),
        "parallel_tool_calls": body.get("parallel_tool_calls"),
        "response_format": _format(text.get("format")),
    }
    return Received(read_request(chat), text_of(body.get("model")), bool(body.get("stream")))


def _with_added_tools(body: Json) -> Json:
    """A request with the tools that are added within the conversation among the others."""
    items = list_of(body.get("input"))
    added = [item for item in items if mapping(item).get("type") == "additional_tools"]
    if not added:
        return body
    tools = [*list_of(body.get("tools"))]
    for item in added:
        tools += list_of(mapping(item).get("tools"))
    return {**body, "tools": tools, "input": [item for item in items if item not in added]}


def _tool(tool: Any, place: int) -> Json:
    fields = mapping(tool)
    if fields.get("type") != "function":
        raise InputError(f"tools[{place}] is not a function tool: {shown(tool)}")
    return {
        "type": "function",
        "function": {
            name: fields[name]
            for name in fields
            if name != "type" and (name != "strict" or fields[name])
        },
    }


def _choice(choice: Any) -> Any:
    if mapping(choice).get("type") != "function":
        return choice
    return {"type": "function", "function": {"name": mapping(choice).get("name")}}


def _format(form: Any) -> Any:
    fields = mapping(form)
    if fields.get("type") != "json_schema":
        return form
    return {
        "type": "json_schema",
        "json_schema": {name: fields[name] for name in fields if name != "type"},
    }


# -- the conversation


def _messages(body: Json) -> list[Message]:
    items = body.get("input")
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    if not isinstance(items, list):
        raise InputError(f"`input` is text or a list of items, found {shown(items)}")
    instructions = text_of(body.get("instructions"))
    messages = [Message("system", instructions)] if instructions else []
    answer: list[Json] = []
    """The items of one answer of the model: they become one message."""
    for place, item in enumerate(cast("list[Any]", items)):
        fields = mapping(item)
        kind = fields.get("type", "message")
        if kind not in _KINDS:
            raise InputError(
                f"input[{place}] is no item known here: {shown(item)}; known types are {', '.join(_KINDS)}",
            )
        is_said = kind == "message" and fields.get("role") == "assistant"
        if answer and (
            kind == "function_call_output"
            or (kind == "message" and not (is_said and _is_thought_only(answer)))
        ):
            messages.append(_answered(answer))
            answer = []
        if is_said or kind in {"reasoning", "function_call"}:
            answer.append({**fields, "type": kind})
        else:
            messages.append(_message(fields, kind, place))
    return [*messages, _answered(answer)] if answer else messages


def _is_thought_only(items: list[Json]) -> bool:
    return all(item["type"] == "reasoning" for item in items)


def _answered(items: list[Json]) -> Message:
    text, _ = text_in(items)
    return Message(
        "assistant",
        text or "",
        calls_in(items),
        reasoning=reasoning_in(items) or "",
        extra=extra_of(items, is_stored=False),
    )


def _message(fields: Json, kind: Any, place: int) -> Message:
    if kind == "function_call_output":
        entry: Json = {
            "role": "tool",
            "tool_call_id": fields.get("call_id"),
            "content": _content(fields.get("output")),
        }
    else:
        entry = {"role": fields.get("role"), "content": _content(fields.get("content"))}
    try:
        return read_message(entry, place)
    except InputError as error:
        raise InputError(str(error).replace("messages[", "input[", 1)) from error


def _content(content: Any) -> Any:
    return (
        [_part(mapping(part)) for part in cast("list[Any]", content)]
        if isinstance(content, list)
        else content
    )


def _part(part: Json) -> Json:
    match part.get("type"):
        case "input_image":
            return {"type": "image_url", "image_url": part.get("image_url")}
        case "input_file":
            return {
                "type": "file",
                "file": {
                    "filename": part.get("filename"),
                    "file_data": part.get("file_data") or part.get("file_url"),
                },
            }
        case _:
            return part


# -- answers


def answer(response: Response, *, model: str) -> Json:
    """A whole answer."""
    return _body(model, response, _output(response))


def _body(model: str, response: Response | None, output: list[Json]) -> Json:
    status, details = ("in_progress", None) if response is None else _status(response.finish_reason)
    return {
        "id": "resp_ferrule", "object": "response", "created_at": 0, "model": model, "status": status, "error": None,
        "incomplete_details": details, "instructions": None, "metadata": {}, "output": output, "parallel_tool_calls": True,
        "previous_response_id": None, "store": False, "temperature": None, "text": {"format": {"type": "text"}}, "tool_choice": "auto",
        "tools": [], "top_p": None, "usage": None if response is None else _usage(response.usage),
    }  # fmt: skip


def _status(reason: str | None) -> tuple[str, Json | None]:
    if reason in {None, "stop", "tool_calls"}:
        return "completed", None
    return "incomplete", {"reason": "max_output_tokens" if reason == "length" else reason}


def _output(response: Response) -> list[Json]:
    kept = [
        mapping(item) for item in list_of(mapping((response.extra or {}).get(WIRE)).get("output"))
    ]
    thoughts = [item for item in kept if item.get("type") == "reasoning"]
    # The ids are made anew: a stream has told that of the first before it is known what came with
    # the answer.
    output = [
        {**_begun("reasoning", place), **item, "id": f"rs_{place}"}
        for place, item in enumerate(thoughts)
    ]
    if response.reasoning and not output:
        output = [
            {
                **_begun("reasoning", 0),
                "summary": [{"type": "summary_text", "text": response.reasoning}],
            },
        ]
    content: list[Json] = (
        [{"type": "output_text", "text": response.text, "annotations": []}]
        if response.text is not None
        else []
    )
    if response.refusal:
        content.append({"type": "refusal", "refusal": response.refusal})
    if content or not response.tool_calls:
        output.append({**_begun("message", 0), "status": "completed", "content": content})
    for place, call in enumerate(response.tool_calls):
        output.append(
            {
                **_begun("function_call", place),
                "call_id": f"call_{place}",
                **call_item(call),
                "status": "completed",
            },
        )
    return output


def _begun(kind: str, place: int) -> Json:
    """An item at the beginning of its stream."""
    match kind:
        case "reasoning":
            return {"type": kind, "id": f"rs_{place}", "summary": []}
        case "message":
            return {
                "type": kind,
                "id": f"msg_{place}",
                "status": "in_progress",
                "role": "assistant",
                "content": [],
            }
        case _:
            return {"type": kind, "id": f"fc_{place}", "status": "in_progress", "arguments": ""}


def _usage(usage: Usage) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.total_tokens,
    }


# -- streams


def events(
    items: Iterable[Delta | Response],
    *,
    model: str,
    with_usage: bool = False,
) -> Iterator[bytes]:
    """A stream as server-sent events; calls come in pieces, as they do from providers."""
    del with_usage  # the last event always counts
    stream: _Stream | None = None
    for item in items:
        if (
            stream is None
        ):  # not before: until then the model may still fail, and the answer be a status
            stream = _Stream()
            for kind in ("response.created", "response.in_progress"):
                yield stream.event(kind, response=_body(model, None, []))
        if isinstance(item, Delta):
            if item.reasoning:
                yield from stream.piece("reasoning", item.reasoning)
            if item.text:
                yield from stream.piece("message", item.text)
            continue
        output = stream.in_order(_output(item))
        for place, each in enumerate(output):
            yield from stream.ended(place, each)
        body = _body(model, item, output)
        yield stream.event(f"response.{body['status']}", response=body)


class _Stream:
    """What was said so far of one streamed answer."""

    def __init__(self) -> None:
        self._number = 0
        self._begun: list[str] = []
        """The types of the items begun, in their order: of each at most one comes in pieces."""

    def event(self, kind: str, **fields: Any) -> bytes:
        """The next event."""
        self._number += 1
        return event({"type": kind, "sequence_number": self._number - 1, **fields}, kind)

    def piece(self, kind: str, text: str) -> Iterator[bytes]:
        """A piece of text or of thoughts."""
        if kind not in self._begun:
            self._begun.append(kind)
            place = len(self._begun) - 1
            yield self.event("response.output_item.added", output_index=place, item=_begun(kind, 0))
            yield self._part("added", kind, place, "")
        yield self._text("delta", kind, self._begun.index(kind), delta=text)

    def in_order(self, output: list[Json]) -> list[Json]:
        """The items of an answer, those that were begun first."""
        first = [
            next((each for each in output if each["type"] == kind), _begun(kind, 0))
            for kind in self._begun
        ]
        return [*first, *(each for each in output if each not in first)]

    def ended(self, place: int, item: Json) -> Iterator[bytes]:
        """The rest of an item, or all of it."""
        kind = item["type"]
        if place < len(self._begun):
            text = (text_in([item])[0] if kind == "message" else reasoning_in([item])) or ""
            yield self._text("done", kind, place, text=text)
            yield self._part("done", kind, place, text)
        else:
            started = {**item, **_begun(kind, place), "id": item.get("id")}
            yield self.event("response.output_item.added", output_index=place, item=started)
        if kind == "function_call":
            arguments: str = item["arguments"]
            half = len(arguments) // 2
            for piece in filter(None, (arguments[:half], arguments[half:])):
                yield self.event(
                    "response.function_call_arguments.delta",
                    output_index=place,
                    item_id=item["id"],
                    delta=piece,
                )
            said = {
                "output_index": place,
                "item_id": item["id"],
                "name": item["name"],
                "arguments": arguments,
            }
            yield self.event("response.function_call_arguments.done", **said)
        yield self.event("response.output_item.done", output_index=place, item=item)

    def _text(self, verb: str, kind: str, place: int, **fields: str) -> bytes:
        name, index = (
            ("output_text", "content_index")
            if kind == "message"
            else ("reasoning_summary_text", "summary_index")
        )
        more: Json = {"logprobs": []} if kind == "message" else {}
        head = {"output_index": place, "item_id": _begun(kind, 0)["id"], index: 0}
        return self.event(f"response.{name}.{verb}", **head, **fields, **more)

    def _part(self, verb: str, kind: str, place: int, text: str) -> bytes:
        name, index = (
            ("content_part", "content_index")
            if kind == "message"
            else ("reasoning_summary_part", "summary_index")
        )
        part: Json = (
            {"type": "output_text", "annotations": []}
            if kind == "message"
            else {"type": "summary_text"}
        )
        head = {"output_index": place, "item_id": _begun(kind, 0)["id"], index: 0}
        return self.event(f"response.{name}.{verb}", **head, part={**part, "text": text})


def error_body(error: FerruleError) -> tuple[int, Json]:
    """The status and the body for a model error or a bad request: as in chat completions."""
    return openai_chat.error_body(error)


def error_event(body: Json) -> bytes:
    """An error in the midst of a stream."""
    error = mapping(body.get("error"))
    said = {"code": error.get("code"), "message": error.get("message"), "param": None}
    return event({"type": "error", "sequence_number": 0, **said}, "error")
