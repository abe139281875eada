"""The tools that Google ran for a Gemini model, and the sources of its answer.

Code and its outcome are parts of the turn, and so are searches in requests that also have functions
(`toolCall`, `toolResponse`). Otherwise, only the metadata of the candidate tell of searches and
pages. Format: the types of python-genai, August 2026.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ferrule.encoding.encode import json_text
from ferrule.models.wires.payload import Json, list_of, mapping, text_of
from ferrule.values.provider_tools import Citation, ProviderCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_PARTS = frozenset({"executableCode", "codeExecutionResult", "toolCall", "toolResponse"})
_NAMES: Mapping[str, str] = {
    "GOOGLE_SEARCH_WEB": "web_search",
    "URL_CONTEXT": "web_fetch",
    "FILE_SEARCH": "file_search",
}
"""The provider's types of tools, with our kinds."""
_GOOD_OUTCOMES = frozenset({"OUTCOME_OK", "OUTCOME_UNSPECIFIED"})


def is_provider_part(part: Json) -> bool:
    """Whether a part is a call that the provider ran, or the outcome of one."""
    return not _PARTS.isdisjoint(part)


def calls_in_parts(parts: Iterable[Json]) -> tuple[ProviderCall, ...]:
    """The provider's calls in the parts of a turn, each with its outcome."""
    calls: list[ProviderCall] = []
    for part in parts:
        if "executableCode" in part:
            code = mapping(part["executableCode"])
            args = {"code": text_of(code.get("code")) or ""}
            call_id = text_of(code.get("id")) or f"code_{len(calls)}"
            calls.append(ProviderCall("code_execution", args, id=call_id))
        elif "toolCall" in part:
            call = mapping(part["toolCall"])
            name = _name_of(call)
            call_id = text_of(call.get("id")) or f"{name}_{len(calls)}"
            calls.append(ProviderCall(name, mapping(call.get("args")), id=call_id))
        elif "codeExecutionResult" in part:
            outcome = mapping(part["codeExecutionResult"])
            word = text_of(outcome.get("outcome")) or "OUTCOME_OK"
            is_error = word not in _GOOD_OUTCOMES
            _settle(calls, outcome, text_of(outcome.get("output")) or "", is_error=is_error)
        elif "toolResponse" in part:
            answer = mapping(part["toolResponse"])
            _settle(calls, answer, json_text(mapping(answer.get("response"))), is_error=False)
    return tuple(calls)


def _name_of(call: Json) -> str:
    word = text_of(call.get("toolType")) or ""
    return _NAMES.get(word, word.lower())


def _settle(calls: list[ProviderCall], outcome: Json, result: str, *, is_error: bool) -> None:
    """Give a call its result: the one with this id, else the first that has none."""
    call_id = text_of(outcome.get("id"))
    for number, call in enumerate(calls):
        if call.result is None and call_id in {None, call.id}:
            calls[number] = replace(call, result=result, is_error=is_error)
            return


def calls_in_metadata(candidate: Json, known: Sequence[ProviderCall]) -> Iterator[ProviderCall]:
    """The searches and the pages that only the metadata of an answer tell of."""
    names = {call.name for call in known}
    grounding = mapping(candidate.get("groundingMetadata"))
    sources = [_source(mapping(chunk)) for chunk in list_of(grounding.get("groundingChunks"))]
    pages = "\n".join([f"{source.title}: {source.url}" for source in sources if source.url])
    if "web_search" not in names:
        for query in list_of(grounding.get("webSearchQueries")):
            yield ProviderCall("web_search", {"query": query}, pages)
    passages = [source for source in sources if source.file is not None]
    if passages and "file_search" not in names:
        lines = [f"{source.title}: {source.quote or ''}" for source in passages]
        yield ProviderCall("file_search", {}, "\n".join(lines))
    if "web_fetch" not in names:
        metadata = mapping(candidate.get("urlContextMetadata"))
        for entry in map(mapping, list_of(metadata.get("urlMetadata"))):
            status = text_of(entry.get("urlRetrievalStatus")) or ""
            is_error = not status.endswith("SUCCESS")
            yield ProviderCall("web_fetch", {"url": entry.get("retrievedUrl")}, status, is_error)


def citations_in(candidate: Json, text: str) -> tuple[Citation, ...]:
    """The sources of the passages of an answer."""
    grounding = mapping(candidate.get("groundingMetadata"))
    sources = [_source(mapping(chunk)) for chunk in list_of(grounding.get("groundingChunks"))]
    citations: list[Citation] = []
    position = 0
    for support in map(mapping, list_of(grounding.get("groundingSupports"))):
        # The indices count bytes of one part. The passage itself is easier to find.
        passage = text_of(mapping(support.get("segment")).get("text")) or ""
        start = text.find(passage, position)
        if start < 0:
            start = text.find(passage)
        place: dict[str, Any] = {}
        if passage and start >= 0:
            place = {"start": start, "end": start + len(passage)}
            position = start
        for index in list_of(support.get("groundingChunkIndices")):
            if type(index) is int and 0 <= index < len(sources):
                citations.append(replace(sources[index], **place))
    return tuple(citations)


def _source(chunk: Json) -> Citation:
    web = mapping(chunk.get("web"))
    if web:
        return Citation(text_of(web.get("uri")), text_of(web.get("title")))
    passage = mapping(chunk.get("retrievedContext"))
    title = text_of(passage.get("title"))
    file = text_of(passage.get("uri")) or title or text_of(passage.get("fileSearchStore"))
    return Citation(title=title, quote=text_of(passage.get("text")), file=file)
