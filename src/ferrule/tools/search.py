"""`defer_tools`: the model searches for tools and loads them, so that a prompt need not list all tools.

`search_tools` lists names with one line each; `load_tool` returns the description and schema of one
tool. A loaded tool is passed to `on_load`, so that a run can offer it from its next turn on.
Without `on_load`, there is a third tool, `call_tool`, which forwards calls, with the loaded tool's
checks and confirmation.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ferrule.approval.rulings import needs_person
from ferrule.encoding.encode import json_text
from ferrule.errors import ToolDefinitionError, ToolRetry
from ferrule.tools.execution.run import call_directly
from ferrule.tools.mcp.safety import scrub
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ferrule.values.calls.call import ToolResult

_LONGEST_LINE = 120
_MOST_FOUND = 20
_WORD = re.compile(r"[a-z0-9]+")
_OWN_NAMES = ("search_tools", "load_tool", "call_tool")
_SEARCH = "Find tools by words of their name and description. Without words, the first of all tools. Gives names with one line each."
_LOAD = (
    "Get a tool's description and the JSON schema of its arguments, and make it ready to be called."
)
_CALL = "Call a tool that was loaded: its name, and the arguments as its schema wants them."


def defer_tools(
    tools: Iterable[Tool],
    *,
    on_load: Callable[[Tool], object] | None = None,
) -> list[Tool]:
    """Replace many tools by two or three that find, load and call them: `search_tools`, `load_tool` and `call_tool`.

    With `on_load`, which receives each tool that the model loads, there is no `call_tool`: the
    caller offers the loaded tool itself. Raises `ToolDefinitionError` if one of the tools has the
    name of a replacement.
    """
    box = Toolbox(tools)
    own = _OWN_NAMES if on_load is None else _OWN_NAMES[:2]
    clashing = [each for each in own if each in box]
    if clashing:
        raise ToolDefinitionError(
            f"`{clashing[0]}` is the name of a deferred tool and of its replacement. Give the tool another name.",
        )

    def search_tools(query: str = "") -> str:
        found = _find(box, query)
        lines = [f"{each.name}: {summary(each)}".rstrip(": ") for each in found[:_MOST_FOUND]]
        more = (
            [f"({len(found) - _MOST_FOUND} more; use other words)"]
            if len(found) > _MOST_FOUND
            else []
        )
        return "\n".join([*lines, *more]) or "No tool matches these words."

    def load_tool(name: str) -> str:
        tool = _known(box, name)
        if on_load is not None:
            on_load(tool)
        return json_text(
            {
                "name": tool.name,
                "description": tool.desc,
                "parameters": tool.declaration["function"]["parameters"],
            },
        )

    def call_tool(name: str, arguments: dict[str, Any]) -> ToolResult:
        tool = _known(box, name)
        return call_directly(tool, tool.prepare(arguments))

    def asks(args: dict[str, Any]) -> bool:
        tool = box.get(args["name"])
        return tool is not None and needs_person(tool, args["arguments"])

    made = [
        Tool(search_tools, desc=_SEARCH, effect="read"),
        Tool(load_tool, desc=_LOAD, effect="read"),
    ]
    return (
        made
        if on_load is not None
        else [*made, Tool(call_tool, desc=_CALL, require_confirmation=asks)]
    )


def summary(tool: Tool) -> str:
    """The first sentence of a tool's description, on one line, shortened."""
    said = " ".join(scrub(tool.desc).split())
    first = re.split(r"(?<=[.!?]) ", said, maxsplit=1)[0]
    return first if len(first) <= _LONGEST_LINE else f"{first[: _LONGEST_LINE - 1]}…"


def _find(box: Toolbox, query: str) -> list[Tool]:
    """The tools that match the most words, best first; a word in the name counts twice. All tools if there are no words."""
    words = set(_WORD.findall(query.lower()))
    if not words:
        return list(box.tools)
    scored = [(_score(each, words), -i, each) for i, each in enumerate(box.tools)]
    return [
        each for score, _, each in sorted(scored, key=lambda one: one[:2], reverse=True) if score
    ]


def _score(tool: Tool, words: set[str]) -> int:
    name, said = tool.name.lower(), tool.desc.lower()
    return sum(2 * (word in name) + (word in said) for word in words)


def _known(box: Toolbox, name: str) -> Tool:
    tool = box.get(name)
    if tool is None:
        import difflib

        near = difflib.get_close_matches(name, box.names, n=3)
        hint = (
            f" Did you mean {', '.join(f'`{each}`' for each in near)}?"
            if near
            else " Use `search_tools` to find its name."
        )
        raise ToolRetry(f"There is no tool `{name}`.{hint}")
    return tool
