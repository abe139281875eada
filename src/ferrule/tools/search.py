"""`defer_tools`: the model searches for tools and loads them, so that a prompt lists only a few.

`search_tools` lists names with one line each; `load_tool` returns the description and schema of one
tool. A loaded tool is passed to `on_load`, so that a run can offer it from its next turn on.
Without `on_load`, there is a third tool, `call_tool`, which forwards calls, with the loaded tool's
checks and confirmation.
"""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING, Any

from ferrule.approval.rulings import needs_person
from ferrule.encoding.encode import json_text
from ferrule.errors import ToolDefinitionError, ToolRetry, checks_keywords
from ferrule.tools.execution.run import call_directly
from ferrule.tools.mcp.safety import scrub
from ferrule.tools.tool import Tool
from ferrule.tools.toolbox import Toolbox

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ferrule.values.calls.call import ToolResult

_LONGEST_LINE = 120
_MOST_RESULTS = 20
_WORD = re.compile(r"[a-z0-9]+")
_DESCRIPTION_OF_SEARCH = (
    "Find tools by words of their name and description. Without words, the first of all tools. "
    "Gives names with one line each."
)
_DESCRIPTION_OF_LOAD = (
    "Get a tool's description and the JSON schema of its arguments, and make it ready to be called."
)
_DESCRIPTION_OF_CALL = (
    "Call a tool that was loaded: its name, and the arguments as its schema wants them."
)


@checks_keywords
def defer_tools(
    tools: Iterable[Tool], *, on_load: Callable[[Tool], object] | None = None
) -> list[Tool]:
    """Replace many tools by two or three that find, load and call them.

    These are `search_tools`, `load_tool` and `call_tool`. With `on_load`, which receives each tool
    that the model loads, there is no `call_tool`: the caller offers the loaded tool itself. Raises
    `ToolDefinitionError` if one of the tools has the name of a replacement.
    """
    toolbox = Toolbox(tools)

    def search_tools(query: str = "") -> str:
        matches = _find(toolbox, query)
        if not matches:
            return "No tool matches these words."
        lines = [f"{tool.name}: {summary(tool)}".rstrip(": ") for tool in matches[:_MOST_RESULTS]]
        if len(matches) > _MOST_RESULTS:
            lines.append(f"({len(matches) - _MOST_RESULTS} more; use other words)")
        return "\n".join(lines)

    def load_tool(name: str) -> str:
        tool = _get(toolbox, name)
        if on_load is not None:
            on_load(tool)
        return json_text(
            {
                "name": tool.name,
                "description": tool.desc,
                "parameters": tool.declaration["function"]["parameters"],
            }
        )

    def call_tool(name: str, arguments: dict[str, Any]) -> ToolResult:
        tool = _get(toolbox, name)
        return call_directly(tool, tool.prepare(arguments))

    def asks(args: dict[str, Any]) -> bool:
        tool = toolbox.get(args["name"])
        return tool is not None and needs_person(tool, args["arguments"])

    replacements = [
        Tool(search_tools, description=_DESCRIPTION_OF_SEARCH, effect="read"),
        Tool(load_tool, description=_DESCRIPTION_OF_LOAD, effect="read"),
    ]
    if on_load is None:
        replacements.append(
            Tool(call_tool, description=_DESCRIPTION_OF_CALL, require_confirmation=asks)
        )
    for replacement in replacements:
        if replacement.name in toolbox:
            raise ToolDefinitionError(
                f"`{replacement.name}` is the name of a deferred tool and of its replacement. "
                "Give the tool another name."
            )
    return replacements


def summary(tool: Tool) -> str:
    """The first sentence of a tool's description, on one line, shortened."""
    description = " ".join(scrub(tool.desc).split())
    sentence = re.split(r"(?<=[.!?]) ", description, maxsplit=1)[0]
    if len(sentence) <= _LONGEST_LINE:
        return sentence
    return f"{sentence[: _LONGEST_LINE - 1]}…"


def _find(toolbox: Toolbox, query: str) -> list[Tool]:
    """The tools that match the most words, best first. All tools if there are no words."""
    words = set(_WORD.findall(query.lower()))
    if not words:
        return list(toolbox.tools)
    scores = {tool.name: _score(tool, words) for tool in toolbox.tools}
    matching = [tool for tool in toolbox.tools if scores[tool.name]]
    return sorted(matching, key=lambda tool: -scores[tool.name])


def _score(tool: Tool, words: set[str]) -> int:
    """How many of the words a tool has; a word in its name counts twice."""
    name, description = tool.name.lower(), tool.desc.lower()
    score = 0
    for word in words:
        if word in name:
            score += 2
        if word in description:
            score += 1
    return score


def _get(toolbox: Toolbox, name: str) -> Tool:
    """The tool of that name. Raises `ToolRetry`, so that the model tries another name."""
    tool = toolbox.get(name)
    if tool is not None:
        return tool
    hint = "Use `search_tools` to find its name."
    similar = difflib.get_close_matches(name, toolbox.names, n=3)
    if similar:
        names = ", ".join(f"`{similar_name}`" for similar_name in similar)
        hint = f"Did you mean {names}?"
    raise ToolRetry(f"There is no tool `{name}`. {hint}")
