"""The calls that Anthropic ran itself, and the sources that its answers cite.

A call is a block `server_tool_use` or `mcp_tool_use`; a later block has its result. An answer may
pause between the two (`pausing.py`). Format: the types of anthropic-sdk-python 2.12.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ferrule.encoding.encode import json_text
from ferrule.models.wires.payload import Json, list_of, mapping, text_of
from ferrule.values.provider_tools import Citation, ProviderCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_RESULT = "_tool_result"
_NAMES: Mapping[str, str] = {
    "bash_code_execution": "code_execution",
    "text_editor_code_execution": "code_execution",
    "tool_search_tool_bm25": "tool_search",
    "tool_search_tool_regex": "tool_search",
}
"""The provider's names for parts of one kind of tool."""


def is_call(kind: str) -> bool:
    """Whether a block of this type is a call that the provider ran, or the result of one."""
    return kind in {"server_tool_use", "mcp_tool_use"} or kind.endswith(_RESULT)


def calls_in(blocks: Iterable[Json]) -> tuple[ProviderCall, ...]:
    """The provider's calls in the blocks of an answer, each with its result if that is there."""
    calls: dict[str, ProviderCall] = {}
    for block in blocks:
        call = call_in(block, calls)
        if call is not None:
            calls[call.id or f"#{len(calls)}"] = call
    return tuple(calls.values())


def call_in(block: Json, known: Mapping[str, ProviderCall]) -> ProviderCall | None:
    """The call that a block begins, or that it completes; None for any other block.

    `known` are the calls of the blocks before, by id. A result may come without its call, if the
    answer before paused between the two.
    """
    kind = text_of(block.get("type")) or ""
    if kind in {"server_tool_use", "mcp_tool_use"}:
        name = text_of(block.get("name")) or ""
        return ProviderCall(
            _NAMES.get(name, name),
            mapping(block.get("input")),
            id=text_of(block.get("id")),
            server=text_of(block.get("server_name")) or "",
        )
    # The result of a tool of the program is a message, not a block of an answer.
    if not kind.endswith(_RESULT) or kind == "tool_result":
        return None
    call_id = text_of(block.get("tool_use_id"))
    name = kind.removesuffix(_RESULT)
    call = known.get(call_id or "") or ProviderCall(_NAMES.get(name, name), id=call_id)
    result, is_error = _result(block)
    return ProviderCall(call.name, call.args, result, is_error, call.id, call.server)


def _result(block: Json) -> tuple[str, bool]:
    """The result in a block, as text, and whether it is an error."""
    content = block.get("content")
    details = mapping(content)
    if details.get("error_code") is not None:
        return f"error: {details['error_code']}", True
    is_error = block.get("is_error") is True or bool(details.get("return_code"))
    return _text_of(content), is_error


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    lines: list[str] = []
    for entry in map(mapping, list_of(content)):
        lines.append(_line(entry))
    details = mapping(content)
    match details.get("type"):
        case "web_fetch_result":
            title = mapping(details.get("content")).get("title")
            lines.append(_page(title, details.get("url")))
        case "tool_search_tool_search_result":
            references = map(mapping, list_of(details.get("tool_references")))
            lines += [str(reference.get("tool_name")) for reference in references]
        case _ if "stdout" in details:
            lines += [str(details[name]) for name in ("stdout", "stderr") if details.get(name)]
        case _ if details:
            lines.append(json_text(details))
        case _:  # a list: its lines are there
            pass
    return "\n".join(lines)


def _line(entry: Json) -> str:
    if entry.get("type") == "web_search_result":
        return _page(entry.get("title"), entry.get("url"))
    text = text_of(entry.get("text"))
    if text is not None:
        return text
    return json_text(entry)


def _page(title: Any, url: Any) -> str:
    """A page in one line: its title, if it has one, and its address."""
    if title:
        return f"{title}: {url}"
    return str(url)


def citations_in(blocks: Sequence[Json]) -> tuple[Citation, ...]:
    """The sources that text blocks cite; the passage that rests on one is its whole block."""
    citations: list[Citation] = []
    start = 0
    for block in blocks:
        text = text_of(block.get("text")) or ""
        for entry in map(mapping, list_of(block.get("citations"))):
            citations.append(
                Citation(
                    url=text_of(entry.get("url")) or text_of(entry.get("source")),
                    title=text_of(entry.get("title")) or text_of(entry.get("document_title")),
                    quote=text_of(entry.get("cited_text")),
                    start=start,
                    end=start + len(text),
                    file=text_of(entry.get("file_id")),
                )
            )
        start += len(text)
    return tuple(citations)
