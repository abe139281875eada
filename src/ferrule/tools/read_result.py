"""Long results: what the model sees of them, and the tool that reads the rest.

The policy, of a toolbox with `spill_over=N`: a result of at most N characters is shown whole. Of a
longer one the model sees a note, the beginning and the end, and of media of more data than that a
note alone. The note names the call. The whole result stays in the run's journal, where the tool
`read_result` finds it, also after a restart: no call runs again.

The tool is among the tools from the start, and not added when a long result comes: the beginning of
the prompt, which declares the tools, must not change during a run.

The note is the first line, before the excerpt: what shortens an old result further
(`conversation/compact.py`) keeps the beginning.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from ferrule.errors import ToolDefinitionError, ToolRetry, shown
from ferrule.tools.tool import Tool
from ferrule.values.calls.call import ToolResult
from ferrule.values.calls.context import Context  # noqa: TC001  a tool reads its annotations
from ferrule.values.content.convert import content_of
from ferrule.values.content.parts import Text
from ferrule.values.conversation.message import shorten

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ferrule.values.content.parts import Content, Part

READ_RESULT = "read_result"
_LEAST = 500
"""The smallest `spill_over`: an excerpt and its note take about as much."""
_BEGINNING, _END = 1_200, 300
"""Characters of a long result that the model sees: few enough for 2,000 tokens in any script."""
_DEFAULT_LENGTH = 4_000
_MOST_MATCHES = 10
_AROUND = 100
"""Characters before and after a match."""

# Not the function's docstring: `python -OO` would drop it.
_DESCRIPTION = (
    "Read more of a result that was too long to show: a slice of its text, or the places where a "
    "text occurs. It does not repeat the call."
)
_ARGUMENTS = {
    "call": "The id of the call, as the note in its result says; or the name of a tool, for its "
    "latest call.",
    "start": "The number of the first character.",
    "length": "How many characters.",
    "search": "A text to find, from `start` on; upper and lower case are the same.",
    "part": "The number of an image or file of the result, to see it.",
}


def check_spill_over(spill_over: Any) -> int | None:
    """Check the option `spill_over` of a toolbox. Raises `ToolDefinitionError`."""
    if spill_over is None or (type(spill_over) is int and spill_over >= _LEAST):
        return spill_over
    raise ToolDefinitionError(
        f"`spill_over` is a whole number of characters, at least {_LEAST}, or None; "
        f"found {shown(spill_over)}."
    )


class _Reader(Struct, frozen=True):
    """The function of `read_result`; a class, so that a toolbox with it can be pickled."""

    spill_over: int

    def read_result(
        self,
        ctx: Context[Any],
        call: str,
        start: int = 0,
        length: int = _DEFAULT_LENGTH,
        search: str = "",
        part: int | None = None,
    ) -> ToolResult:
        result = _result_of(ctx, call)
        most = min(length, self.spill_over)
        content: Content
        if part is not None:
            content = (_part_of(result, part),)
        elif search:
            content = _matches(result.text, max(start, 0), search, most)
        else:
            content = _slice(result.text, start, most)
        # What others may have written stays so, however it is cut.
        return ToolResult(READ_RESULT, content, untrusted=result.untrusted)


@lru_cache(maxsize=32)  # one tool, so that toolboxes with equal tools are equal
def _reader_tool(spill_over: int) -> Tool:
    function = _Reader(spill_over).read_result
    return Tool(function, READ_RESULT, _DESCRIPTION, arg_desc=_ARGUMENTS, effect="read")


def is_reader(tool: Tool) -> bool:
    """Whether a tool is the `read_result` of a toolbox."""
    return isinstance(getattr(tool.func, "__self__", None), _Reader)


def with_reader(tools: Iterable[Tool], spill_over: int) -> tuple[Tool, ...]:
    """The tools with one `read_result`, after all others."""
    return (*(tool for tool in tools if not is_reader(tool)), _reader_tool(spill_over))


def shown_to_model(result: ToolResult, most_chars: int, spill_over: int | None) -> ToolResult:
    """A result as the model sees it: not more than it may, with a note on what is left out."""
    if spill_over is None or result.name == READ_RESULT or not result.call_id:
        content = shorten(result.content, most_chars)
    else:
        content = _excerpt(result, min(most_chars, spill_over))
    if content is result.content:
        return result
    return replace(result, content=content)


# -- what is shown at first


def _excerpt(result: ToolResult, most: int) -> Content:
    if isinstance(result.content, str):
        return _excerpt_of_text(result.content, result.call_id, most)
    parts = result.content
    is_long = sum(len(part.text) for part in parts if isinstance(part, Text)) > most
    if not is_long and not any(_is_large(part, most) for part in parts):
        return parts
    shown_parts: list[Part] = []
    if is_long:
        shown_parts.append(Text(text=_excerpt_of_text(result.text, result.call_id, most)))
    for number, part in enumerate(parts):
        if isinstance(part, Text):
            if not is_long:
                shown_parts.append(part)
        elif _is_large(part, most):
            shown_parts.append(Text(text=_reference(part, number, result.call_id)))
        else:
            shown_parts.append(part)
    return content_of(shown_parts)


def _excerpt_of_text(text: str, call_id: str | None, most: int) -> str:
    if len(text) <= most:
        return text
    beginning, end = min(_BEGINNING, most // 2), min(_END, most // 8)
    note = (
        f"[This result has {len(text):,} characters. Below are the first {beginning:,} and the "
        f"last {end:,}. To read on: {READ_RESULT}(call={call_id!r}, start={beginning}), or with "
        "search='...'.]"
    )
    return f"{note}\n{text[:beginning]}\n[...]\n{text[len(text) - end :]}"


def _is_large(part: Part, most: int) -> bool:
    data: str | None = getattr(part, "data", None)
    return data is not None and len(data) > most


def _reference(part: Any, number: int, call_id: str | None) -> str:
    size = len(part.data) * 3 // 4
    return (
        f"[Part {number} of this result is {part.media_type} of {size:,} bytes. To see it: "
        f"{READ_RESULT}(call={call_id!r}, part={number}).]"
    )


# -- what is read later


def _result_of(ctx: Context[Any], call: str) -> ToolResult:
    results = [result for result in ctx.results_here() if result.name != READ_RESULT]
    for result in results:
        # Models write the name of a tool, too; code does not know the ids of its calls.
        if call in {result.call_id, result.name}:
            return result
    latest = [f"{result.call_id!r} ({result.name})" for result in results[:_MOST_MATCHES]]
    raise ToolRetry(
        f"There is no result of a call {shown(call)} here. The latest calls with a result: "
        f"{', '.join(latest) or 'none'}. Results of earlier conversations are gone: call their "
        "tool again."
    )


def _part_of(result: ToolResult, number: int) -> Part:
    parts: tuple[Part, ...] = ()
    if not isinstance(result.content, str):
        parts = tuple(result.content)
    if not 0 <= number < len(parts):
        raise ToolRetry(
            f"The result has {len(parts)} parts, counted from 0; found part={number}. Leave `part` "
            "out to read text."
        )
    return parts[number]


def _slice(text: str, start: int, length: int) -> str:
    if length < 1 or not 0 <= start < max(len(text), 1):
        raise ToolRetry(
            f"The result has {len(text):,} characters, counted from 0; found start={start}, "
            f"length={length}."
        )
    end = min(start + length, len(text))
    note = f"[Characters {start} to {end} of {len(text)}"
    if end < len(text):
        note += f"; to read on: start={end}"
    return f"{note}.]\n{text[start:end]}"


def _matches(text: str, start: int, search: str, most: int) -> str:
    folded, wanted = text.casefold(), search.casefold()
    if len(folded) != len(text):  # such as `ß`: then places would not agree
        folded, wanted = text.lower(), search.lower()
    if len(folded) != len(text):
        folded, wanted = text, search
    lines: list[str] = []
    used, place = 0, folded.find(wanted, start)
    while place >= 0 and len(lines) < _MOST_MATCHES:
        around = text[max(place - _AROUND, 0) : place + len(wanted) + _AROUND]
        line = f"[at {place}] {around}"
        if lines and used + len(line) > most:
            break
        lines.append(line[:most])
        used += len(line)
        place = folded.find(wanted, place + len(wanted))
    if not lines:
        return f"[{search!r} does not occur in characters {start} to {len(text)} of the result.]"
    note = f"[{len(lines)} places of {search!r} in {len(text)} characters"
    if place >= 0:
        note += f"; more from start={place} on"
    return "\n".join([f"{note}.]", *lines])
