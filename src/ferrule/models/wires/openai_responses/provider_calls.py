"""The calls that a provider of OpenAI's Responses API ran itself, and the sources of its answers.

Each call is one item, with its result if the request includes it (`included_for`); only what a
search for tools found is an item of its own, after the call. Format: the types of openai-python
3.54.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ferrule.models.wires.payload import Json, count_of, list_of, mapping, text_of
from ferrule.values.provider_tools import Citation, ProviderCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ferrule.values.provider_tools import ProviderTool

_NAMES: Mapping[str, str] = {
    "web_search_call": "web_search",
    "code_interpreter_call": "code_execution",
    "file_search_call": "file_search",
    "mcp_call": "",
    "tool_search_call": "tool_search",
}
"""The types of items that are calls, with the kind of tool; a remote tool has its own name."""
_INCLUDED: Mapping[str, str] = {
    "web_search": "web_search_call.action.sources",
    "code_execution": "code_interpreter_call.outputs",
    "file_search": "file_search_call.results",
}
"""What must be asked for, so that an item has the result of its call."""
_FOUND_TOOLS = "tool_search_output"
_NO_CALLS: Mapping[str, ProviderCall] = {}
_FAILED = frozenset({"failed", "incomplete"})


def included_for(tools: Iterable[ProviderTool]) -> list[str]:
    """The values of `include` for these tools."""
    return [_INCLUDED[tool.kind] for tool in tools if tool.kind in _INCLUDED]


def is_provider_call(item: Json) -> bool:
    """Whether an item is a call that the provider ran."""
    return text_of(item.get("type")) in _NAMES or item.get("type") == _FOUND_TOOLS


def provider_calls_in(items: Iterable[Json]) -> tuple[ProviderCall, ...]:
    """The provider's calls among the items of an answer, in order."""
    calls: dict[str, ProviderCall] = {}
    for item in items:
        call = provider_call_in(item, calls)
        if call is not None:
            calls[call.id or f"#{len(calls)}"] = call
    return tuple(calls.values())


def provider_call_in(
    item: Json, known: Mapping[str, ProviderCall] = _NO_CALLS
) -> ProviderCall | None:
    """The call of an item, or the one that an item completes; None for any other item.

    `known` are the calls of the items before, by id.
    """
    kind = text_of(item.get("type")) or ""
    if kind == _FOUND_TOOLS:
        return _search_with_result(item, known)
    if kind not in _NAMES:
        return None
    is_error = text_of(item.get("status")) in _FAILED or bool(item.get("error"))
    return ProviderCall(
        _NAMES[kind] or text_of(item.get("name")) or "",
        _arguments(kind, item),
        _result(kind, item),
        is_error,
        text_of(item.get("id")),
        text_of(item.get("server_label")) or "",
    )


def _search_with_result(item: Json, known: Mapping[str, ProviderCall]) -> ProviderCall:
    """The latest search for tools, with what it found. A search of the server has no `call_id`."""
    search = ProviderCall("tool_search", id=text_of(item.get("id")))
    for call in known.values():
        if call.kind == "tool_search" and call.result is None:
            search = call
    names = [str(tool.get("name")) for tool in map(mapping, list_of(item.get("tools")))]
    is_error = text_of(item.get("status")) in _FAILED
    return ProviderCall(search.name, search.args, "\n".join(names), is_error, search.id)


def _arguments(kind: str, item: Json) -> Json:
    match kind:
        case "web_search_call":
            action = mapping(item.get("action"))
            return {name: value for name, value in action.items() if name != "sources" and value}
        case "code_interpreter_call":
            code = text_of(item.get("code"))
            return {} if code is None else {"code": code}
        case "file_search_call":
            return {"queries": list_of(item.get("queries"))}
        case _:
            return _object_in(item.get("arguments"))


def _object_in(text: Any) -> Json:
    """The object in the text of arguments; none while they are incomplete."""
    if not isinstance(text, str):
        return mapping(text)
    try:
        return mapping(json.loads(text or "{}"))
    except ValueError:
        return {"arguments": text}


def _result(kind: str, item: Json) -> str | None:
    match kind:
        case "web_search_call":
            sources = mapping(item.get("action")).get("sources")
            lines = [str(source.get("url")) for source in map(mapping, list_of(sources))]
        case "code_interpreter_call":
            outputs = map(mapping, list_of(item.get("outputs")))
            lines = [str(output.get("logs") or output.get("url") or "") for output in outputs]
        case "file_search_call":
            lines = [_passage(mapping(entry)) for entry in list_of(item.get("results"))]
        case "tool_search_call":
            return None  # another item has it
        case _:
            return _outcome(item)
    if not lines and item.get("status") != "completed":
        return None
    return "\n".join(lines)


def _outcome(item: Json) -> str | None:
    """What a remote tool returned, or how it failed."""
    error = item.get("error")
    if error:
        return text_of(mapping(error).get("message")) or str(error)
    return text_of(item.get("output"))


def _passage(entry: Json) -> str:
    """A passage of a file."""
    name = entry.get("filename") or entry.get("file_id")
    return f"{name}: {entry.get('text') or ''}"


def citations_in(parts: Sequence[Json]) -> tuple[Citation, ...]:
    """The sources that the parts of a text cite, with their places in the whole text."""
    citations: list[Citation] = []
    offset = 0
    for part in parts:
        for entry in map(mapping, list_of(part.get("annotations"))):
            start = end = None
            if entry.get("end_index") is not None:
                start = offset + count_of(entry.get("start_index"))
                end = offset + count_of(entry.get("end_index"))
            citations.append(
                Citation(
                    url=text_of(entry.get("url")),
                    title=text_of(entry.get("title")) or text_of(entry.get("filename")),
                    start=start,
                    end=end,
                    file=text_of(entry.get("file_id")),
                )
            )
        offset += len(part["text"])
    return tuple(citations)
